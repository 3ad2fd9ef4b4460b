-- Takes sessions whose keys have expired out of the indexes; gives how many were gone.
-- KEYS: ending, sessions, failed, due, children, labels; of each session its hash, and the keys to which a build that
-- does not know them gives no time to live: old values, and queued messages
-- ARGV: Redis ms of the pass; the ids of the sessions
local gone = 0
for i = 2, #ARGV do
  local sid = ARGV[i]
  local place = 1 + 3 * i
  local left = redis.call('PTTL', KEYS[place])
  if left == -2 then
    for index = 2, 5 do redis.call('ZREM', KEYS[index], sid) end
    local own = '@' .. sid .. '\n'  -- see labels.py
    for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[6], '[' .. own, '(@' .. sid .. '\11')) do
      redis.call('ZREM', KEYS[6], member, '=' .. string.sub(member, #own + 1) .. '\n' .. sid)
    end
    redis.call('DEL', KEYS[place + 1], KEYS[place + 2])
    gone = gone + 1
  end
  redis.call('ZREM', KEYS[1], sid)
  -- Its life begins when its end is written, its time in the index when that was read.
  if left >= 0 then redis.call('ZADD', KEYS[1], ARGV[1] + left + 1, sid) end
end
return gone
