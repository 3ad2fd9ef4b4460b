-- Ends the wait of sessions whose agent a worker has registered; parked ones come back.
-- KEYS: unoffered, due
-- ARGV: prefix, now, limit, events kept, wait ms (0: the sweep publishes the steps), agent, number of queues, the queues
-- that the worker takes, the preferred first
-- Gives how many sessions were looked at, and the steps that are to be published now.
local prefix, now, wait, agent = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5]), ARGV[6]
local taken, free = {}, {}
for i = 8, 7 + tonumber(ARGV[7]) do taken[ARGV[i]] = true end
-- All scores are 0, so the members stand in the order of their bytes; '!' follows the blank.
local found = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. agent .. ' ', '(' .. agent .. '!', 'LIMIT', 0, ARGV[3])
for _, member in ipairs(found) do
  redis.call('ZREM', KEYS[1], member)
  local sid = string.sub(member, #agent + 2)
  local session = prefix .. 's:' .. sid
  local ctl = session .. ':ctl'
  local f = redis.pcall('HMGET', ctl, 'execution', 'step', 'phase', 'queue', 'started', 'not_before', 'held', 'claim',
    'retries', 'legs')
  if (not f.err) and f[1] then
    redis.call('HDEL', ctl, 'unoffered')
    local queue = f[4] or ''
    if not taken[queue] then
      queue = ARGV[8]
      redis.call('HSET', ctl, 'queue', queue)
    end
    -- A delayed or held session keeps its time.
    local due = math.max(now, tonumber(f[6] or '0') or 0, tonumber(f[7] or '0') or 0)
    if f[3] == 'parked' then
      redis.call('HSET', ctl, 'phase', 'run', 'attempts', 0)
      redis.call('HSET', session, 'status', (f[5] or '0') == '0' and 'pending' or 'in_progress')
      redis.call('ZADD', KEYS[2], due, sid)
    end
    if f[3] ~= 'end' then
      local is_free = wait > 0 and due <= now and (f[8] or '') == ''
      redis.call('HSET', ctl, 'published', is_free and now or 0, 'nudges', 0)
      redis.call('ZADD', KEYS[2], 'XX', is_free and now + wait or due, sid)
      if is_free then free[#free + 1] = {sid, f[1], f[2] or '0', f[9] or '0', f[10] or '0', queue} end
      redis.call('XADD', session .. ':events', 'MAXLEN', '~', ARGV[4], '*', 'type', 'worker_found',
        'execution', f[1], 'step', f[2] or '0', 'data', cjson.encode({agent = agent}))
    end
  end
end
return {#found, free}
