-- Does what WATCH, reads and MULTI … EXEC do in two round trips, where the caller knows beforehand what it will read.
-- A missing reply counts as "". False: a guard did not hold, and nothing was written.
-- ARGV: number of guards; for each guard: number of words, number of answers, words, answers; then for each command:
-- number of words, words. The second word, if there is one, is the place of the command's key in KEYS.
local function call(at, words)
  if words > 1 then ARGV[at + 1] = KEYS[tonumber(ARGV[at + 1])] end
  return redis.call(unpack(ARGV, at, at + words - 1))
end
local at = 2
for _ = 1, tonumber(ARGV[1]) do
  local words, answers = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local reply = call(at + 2, words)
  if type(reply) ~= 'table' then reply = {reply} end
  at = at + 2 + words
  for i = 1, answers do
    local found = reply[i]
    if found == false then found = '' end
    if tostring(found) ~= ARGV[at + i - 1] then return false end
  end
  at = at + answers
end
local replies = {}
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  replies[#replies + 1] = call(at + 1, words)
  at = at + 1 + words
end
return replies
