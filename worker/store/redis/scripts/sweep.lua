-- One pass over what is due in a shard. Every entry it looks at is moved, so that a pass does not begin where the last
-- one began, and a live step in front never hides a dead one behind it. XX: a session that ended meanwhile stays out.
-- KEYS: due
-- ARGV: prefix, now, limit, lease ms, grace ms, wait ms, longest wait ms, oldest queued ms (-1 none), capacity
local prefix, now, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, grace, wait, longest = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local oldest, capacity = tonumber(ARGV[8]), tonumber(ARGV[9])
local lost, live, queued, broken = {}, 0, 0, {}
local slack = 1000  -- messages of one moment do not stand in the queue in the exact order of their times
for _, sid in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, limit)) do
  local ctl = prefix .. 's:' .. sid .. ':ctl'
  local f = redis.pcall('HMGET', ctl, 'execution', 'step', 'claim', 'phase', 'published', 'nudges', 'retries')
  if f.err or (f[1] and not (tonumber(f[2]) and tonumber(f[7] or '0'))) then
    broken[#broken + 1] = sid  -- one session's damage must not keep the others from being looked at
    redis.call('ZREM', KEYS[1], sid)
  elseif (not f[1]) or f[4] == 'end' then
    redis.call('ZREM', KEYS[1], sid)
  else
    local left = -2
    if f[3] and f[3] ~= '' then left = redis.call('PTTL', prefix .. 'lease:' .. f[3]) end
    if left == -1 then left = lease end
    if left >= 0 then
      live = live + 1
      redis.call('ZADD', KEYS[1], 'XX', now + left + grace, sid)
    elseif oldest >= 0 and (tonumber(f[5] or '0') or 0) + slack >= oldest then
      queued = queued + 1
      redis.call('ZADD', KEYS[1], 'XX', now + wait, sid)
    elseif #lost < capacity then
      local nudges = tonumber(f[6] or '0') or 0
      redis.call('HSET', ctl, 'published', now, 'nudges', nudges + 1)
      redis.call('ZADD', KEYS[1], 'XX', now + math.min(wait * 2 ^ math.min(nudges, 20), longest), sid)
      lost[#lost + 1] = {sid, f[1], f[2], f[7] or '0'}
    else
      break
    end
  end
end
return {lost, live, queued, broken}
