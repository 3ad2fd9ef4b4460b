"""The Lua scripts: where one round trip has to look and write at once.

They use nothing newer than Redis 6.2 and name every key from a prefix of one shard, so all of a script's keys share a
slot. `memory_tables` has the same functions in Python; the contract suite holds the two together.
"""

from __future__ import annotations

from typing import Final

# One pass over what is due. Every entry it looks at is moved, so that nothing is looked at twice in a row and a long
# live step in front never hides a dead one behind it. XX: a session that ended meanwhile is not revived.
# ARGV: prefix, now, limit, lease ms, grace ms, wait ms, longest wait ms, oldest queued ms (-1 none), capacity.
SWEEP: Final = """
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
"""

# Take sessions whose keys have expired out of the indexes. ARGV: prefix, now, limit. How many were gone, and looked at.
PRUNE: Final = """
local gone, found = 0, redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, sid in ipairs(found) do
  if redis.call('EXISTS', ARGV[1] .. 's:' .. sid) == 0 then
    redis.call('ZREM', KEYS[2], sid)
    redis.call('ZREM', KEYS[3], sid)
    redis.call('ZREM', KEYS[4], sid)
    gone = gone + 1
  end
  redis.call('ZREM', KEYS[1], sid)
end
return {gone, #found}
"""

# Redis refuses memory to a script only until its first write: trimming the session's events both frees memory and opens
# the way for an answer that was paid for. KEYS: journal, events. ARGV: field, value, field, value …
JOURNAL_WHEN_FULL: Final = """
redis.call('XTRIM', KEYS[2], 'MAXLEN', 16)
local first = {}
for i = 1, #ARGV, 2 do first[#first + 1] = redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return first
"""

# What WATCH, reads and MULTI … EXEC do in two round trips, where the caller knows beforehand what it will read.
# ARGV: number of guards; of each: number of words, number of answers, words, answers; then of each command: number of
# words, words. A reply that is missing counts as "". False: a guard did not hold, and nothing was written.
ATTEMPT: Final = """
local at = 2
for _ = 1, tonumber(ARGV[1]) do
  local words, answers = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local reply = redis.call(unpack(ARGV, at + 2, at + 1 + words))
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
  replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
  at = at + 1 + words
end
return replies
"""

SCRIPTS: Final = {"attempt": ATTEMPT, "sweep": SWEEP, "prune": PRUNE, "journal_when_full": JOURNAL_WHEN_FULL}
