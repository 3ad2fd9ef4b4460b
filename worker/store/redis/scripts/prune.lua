-- Takes sessions whose keys have expired out of the indexes; gives how many were gone.
-- KEYS: ending, sessions, failed, due, children, labels; the hash of each session
-- ARGV: Redis ms of the pass; the ids of the sessions
local gone = 0
for i = 2, #ARGV do
  local sid = ARGV[i]
  local left = redis.call('PTTL', KEYS[5 + i])
  if left == -2 then
    for index = 2, 5 do redis.call('ZREM', KEYS[index], sid) end
    local own = '@' .. sid .. '\n'  -- see labels.py
    for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[6], '[' .. own, '(@' .. sid .. '\11')) do
      redis.call('ZREM', KEYS[6], member, '=' .. string.sub(member, #own + 1) .. '\n' .. sid)
    end
    gone = gone + 1
  end
  redis.call('ZREM', KEYS[1], sid)
  -- Its life begins when its end is written, its time in the index when that was read.
  if left >= 0 then redis.call('ZADD', KEYS[1], ARGV[1] + left + 1, sid) end
end
return gone
