-- Takes sessions whose keys have expired out of the indexes; gives how many were gone, and how many it looked at.
-- KEYS: ending, sessions, failed, due, children
-- ARGV: prefix, now, limit
local gone, found = 0, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, sid in ipairs(found) do
  if redis.call('EXISTS', ARGV[1] .. 's:' .. sid) == 0 then
    redis.call('ZREM', KEYS[2], sid)
    redis.call('ZREM', KEYS[3], sid)
    redis.call('ZREM', KEYS[4], sid)
    redis.call('ZREM', KEYS[5], sid)
    gone = gone + 1
  end
  redis.call('ZREM', KEYS[1], sid)
end
return {gone, #found}
