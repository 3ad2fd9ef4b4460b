-- Takes sessions whose keys have expired out of the indexes; gives how many were gone.
-- KEYS: ending, sessions, failed, due, children, labels; the hash of each session
-- ARGV: the ids of the sessions
local gone = 0
for i, sid in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[6 + i]) == 0 then
    for index = 2, 5 do redis.call('ZREM', KEYS[index], sid) end
    local own = '@' .. sid .. '\n'  -- see labels.py
    for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[6], '[' .. own, '(@' .. sid .. '\11')) do
      redis.call('ZREM', KEYS[6], member, '=' .. string.sub(member, #own + 1) .. '\n' .. sid)
    end
    gone = gone + 1
  end
  redis.call('ZREM', KEYS[1], sid)
end
return gone
