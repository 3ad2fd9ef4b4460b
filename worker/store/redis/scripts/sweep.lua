-- Looks at due sessions of a shard. Every entry it looks at is moved, so that a pass does not begin where the last one
-- began, and a live step in front never hides a dead one behind it. XX: a session that ended meanwhile stays out.
-- KEYS: due, unoffered; for each session: its hash, control fields, events, and the lease of the claim below
-- ARGV: number of sessions, now, lease ms, grace ms, wait ms, longest wait ms, capacity, agent grace ms, events kept,
-- 1 when the offered agents are known, number of queues and lanes; for each session: id, its claim; for each queue, and
-- for each lane as queue LF lane: name, oldest queued ms (-1 none); then for each offered agent: name, number of its
-- queues, their names, the preferred one first
local count, now = tonumber(ARGV[1]), tonumber(ARGV[2])
local lease, grace, wait, longest = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local capacity, patience, events, known = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[10] == '1'
local oldest, offered, at = {}, {}, 12 + 2 * count
for _ = 1, tonumber(ARGV[11]) do
  oldest[ARGV[at]] = tonumber(ARGV[at + 1])
  at = at + 2
end
while at <= #ARGV do
  local queues = {first = ARGV[at + 2]}
  for i = at + 2, at + 1 + tonumber(ARGV[at + 1]) do queues[ARGV[i]] = true end
  offered[ARGV[at]] = queues
  at = at + 2 + tonumber(ARGV[at + 1])
end
local lost, live, queued, broken, expired = {}, 0, 0, {}, {}
local last = 253402300799999  -- the year 9999: no hold ends later
local slack = 1000  -- messages of one moment do not stand in the queue in the exact order of their times
local function number_in(text, least, most)  -- 'nan', 'inf' and absurd numbers are numbers to Lua
  local n = tonumber(text or '0')
  if n and n >= least and n <= most then return n end
  return least
end

-- Lets a session wait for a worker that offers its agent; the grace period counts from the first time.
local function leave_unoffered(sid, ctl, stream, f, agent)
  local since = tonumber(string.match(f[9] or '', '^%d+'))
  if since and now >= since + patience then
    redis.call('ZADD', KEYS[1], 'XX', now + wait, sid)
    expired[#expired + 1] = {sid, f[1], f[2], agent}
    return
  end
  if not since then
    since = now
    redis.call('HSET', ctl, 'unoffered', string.format('%.0f', now) .. ' ' .. agent)
    redis.call('XADD', stream, 'MAXLEN', '~', events, '*', 'type', 'waiting_for_worker',
      'execution', f[1], 'step', f[2], 'data', cjson.encode({agent = agent}))
  end
  redis.call('ZADD', KEYS[2], 0, agent .. ' ' .. sid)
  redis.call('ZADD', KEYS[1], 'XX', since + patience, sid)
end

for i = 1, count do
  local sid, session, ctl, stream, held_by = ARGV[10 + 2 * i], unpack(KEYS, 4 * i - 1, 4 * i + 2)
  local f = redis.pcall('HMGET', ctl, 'execution', 'step', 'claim', 'phase', 'published', 'nudges', 'retries', 'queue',
    'unoffered', 'legs', 'held', 'cancel', 'lane', 'not_before')
  local held = not f.err and tonumber(f[11] or '0')
  if f.err or (f[1] and not (tonumber(f[2]) and tonumber(f[7] or '0') and tonumber(f[10] or '0')
      and held and held >= 0 and held <= last)) then
    broken[#broken + 1] = sid  -- one session's damage must not keep the others from being looked at
    redis.call('ZADD', KEYS[1], 'XX', now + wait, sid)  -- a sweep that dies before it parks the session leaves it due
  elseif (not f[1]) or f[4] == 'end' then
    redis.call('ZREM', KEYS[1], sid)
  elseif (f[3] or '') == ARGV[11 + 2 * i] then  -- another claim is of now, and its lease is not among the keys
    local left, queue, agent = -2, f[8] or '', nil
    if f[3] and f[3] ~= '' then left = redis.call('PTTL', held_by) end
    if left == -1 then  -- somebody took its time to live away: nobody would ever take over from a dead worker
      redis.call('PEXPIRE', held_by, lease)
      left = lease
    end
    if left < 0 and known then
      agent = redis.pcall('HGET', session, 'agent')
      if type(agent) ~= 'string' then agent = nil end
    end
    local queues, lane, line = agent and offered[agent], f[13] or '', queue
    if lane ~= '' then line = queue .. '\n' .. lane end
    -- Somebody suspended it, and nobody asked it to stop; or it was delayed, or waits, since it was found to be due.
    local later = held > 0 and (f[12] ~= f[1] and held or 0) or number_in(f[14], 0, last)
    local moves = queues and not queues[queue]  -- no worker that offers the agent takes this queue
    if left >= 0 then
      live = live + 1
      redis.call('ZADD', KEYS[1], 'XX', now + left + grace, sid)
    elseif later > now then
      redis.call('ZADD', KEYS[1], 'XX', later, sid)
    elseif agent and not queues then
      leave_unoffered(sid, ctl, stream, f, agent)
    elseif not moves and (oldest[line] or -1) >= 0 and number_in(f[5], 0, now + lease) + slack >= oldest[line] then
      queued = queued + 1
      redis.call('ZADD', KEYS[1], 'XX', now + wait, sid)
    elseif #lost < capacity then
      local republished, left_queue = number_in(f[6], 0, 1e6), ''
      redis.call('HSET', ctl, 'published', now, 'nudges', republished + 1)
      if moves then
        left_queue, queue = queue, queues.first
        redis.call('HSET', ctl, 'queue', queue)
      end
      if f[9] and queues then
        redis.call('HDEL', ctl, 'unoffered')
        redis.call('ZREM', KEYS[2], agent .. ' ' .. sid)
      end
      redis.call('ZADD', KEYS[1], 'XX', now + math.min(wait * 2 ^ math.min(republished, 20), longest), sid)
      lost[#lost + 1] = {sid, f[1], f[2], f[7] or '0', f[10] or '0', queue, lane, left_queue}
    else
      break
    end
  end
end
return {lost, live, queued, broken, expired}
