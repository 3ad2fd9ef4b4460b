-- Redis refuses memory to a script only until its first write: trimming the session's events both frees memory and lets
-- an answer that was paid for pass.
-- KEYS: journal, events
-- ARGV: field, value, field, value …
redis.call('XTRIM', KEYS[2], 'MAXLEN', 16)
local first = {}
for i = 1, #ARGV, 2 do first[#first + 1] = redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return first
