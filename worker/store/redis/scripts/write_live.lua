-- Writes the live text of attempts whose mark stands in their session's control fields, and drops that of all others.
-- ARGV: entries kept, life ms; for each attempt: session key, claim, step, mark, mark of its commit, number of entries;
-- for each entry: number of words, fields and values
-- Returns how many entries were written.
local kept, life, at, written = ARGV[1], ARGV[2], 3, 0
while at <= #ARGV do
  local session, claim, step, mark, last, entries = unpack(ARGV, at, at + 5)
  at = at + 6
  local ctl, live = session .. ':ctl', session .. ':live'
  local found = redis.call('HMGET', ctl, 'claim', 'step', 'live')
  local counts = found[3] == mark
  if not counts and found[1] == claim and found[2] == step then
    redis.call('HSET', ctl, 'live', mark)
    counts = true
  end
  -- A commit that was faster than the first write: what the step has written is true by now.
  counts = counts or redis.call('HGET', session, 'last') == last
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
