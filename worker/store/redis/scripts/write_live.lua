-- Writes the live text of attempts whose mark stands in their session's control fields, and drops that of all others.
-- KEYS: for each attempt: its session's hash, control fields, live text
-- ARGV: life ms; for each attempt: claim, step, mark, entries kept, number of entries; for each entry: number of words,
-- fields and values
-- Returns how many entries were written.
local life, at, written = ARGV[1], 2, 0
for key = 1, #KEYS, 3 do
  local session, ctl, live = unpack(KEYS, key, key + 2)
  local claim, step, mark, kept, entries = unpack(ARGV, at, at + 4)
  at = at + 5
  local found = redis.call('HMGET', ctl, 'claim', 'step', 'live')
  local counts = found[3] == mark
  if not counts and found[1] == claim and found[2] == step then
    redis.call('HSET', ctl, 'live', mark)
    counts = true
  end
  if not counts then
    -- Commits that were faster than the first write: what these steps have written is true by now.
    local last = redis.call('HGET', session, 'last')
    local done, by = string.match(last or '', '^(%d+):(.*)$')
    counts = by == claim and tonumber(done) >= tonumber(step)
  end
  for _ = 1, tonumber(entries) do
    local words = tonumber(ARGV[at])
    if counts then
      redis.call('XADD', live, 'MAXLEN', '~', kept, '*', unpack(ARGV, at + 1, at + words))
      written = written + 1
    end
    at = at + 1 + words
  end
  if counts then redis.call('PEXPIRE', live, life) end
end
return written
