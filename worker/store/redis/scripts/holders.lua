-- Who counts for concurrency limits, and who waits; docs/protocol.md, "Holders". Times are Redis ms.
-- KEYS: flow, lines (the parts in whose lines somebody stands → when the sweep has looked), and for each part of a limit: held (holder → end of its
-- lease), line (session → arrival), called (session → when), claims (session → the time of the claim that stands in the line)
-- ARGV: JSON of what is asked. Always: op, parts (texts), limits (for each part its field in flow, and the key of its label
-- or ""), and for take since when each limit is known to be set (0: it was removed; -1: nobody has defined it). take: id (of the holder), session,
-- claimed (the time of its claim), lease, stand (in line when refused),
-- again (it had ended; where its session stands in a line, another claim of it does). keep: as take, again. give: id. look: session. leave: session,
-- mark (when it was called), or claimed (the claim that stands in the line). call: settled (whether holders whose lease has ended are gone).
-- take gives {1, now, others wait}, {0, now, part, limit (-1: nobody has defined it), held, calls}, {-2} where
-- it is another one than is known, or {-3} where a later claim of the session stands in a line;
-- keep gives {1, now, others wait} or {0} where the holder is gone; look gives {may go}; the others give their calls: {part, session, called before, mark, …}.
-- A part is refused to whoever has fewer free holders than sessions before it in the line. Parts come in one order, the
-- total of a limit last: who is refused keeps its place in the lines before that part, and stands in none behind it. Who waits for
-- a limit to be defined, or to be more than 0, stands in the line of that alone.
local AGAIN, MOST, HOUR = 10000, 100, 3600000
local flow, lines = KEYS[1], KEYS[2]
local ask = cjson.decode(ARGV[1])
local id, session = ask.id, ask.session
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local calls = {}

local function keys(part) return unpack(KEYS, 4 * part - 1, 4 * part + 2) end

-- The limit of a part; nil where there is none, false where nobody has defined one that can be read.
local function most(part)
  local field, label = unpack(ask.limits[part])
  local raw = redis.call('HGET', flow, field)
  if not raw then return false end
  local readable, limit = true, {since_ms = 0}
  if raw ~= '' then readable, limit = pcall(cjson.decode, raw) end
  if not readable or type(limit) ~= 'table' then return false end
  if ask.since and (limit.since_ms or 0) ~= ask.since[part] then return 'another' end
  local found = limit.total
  if label ~= '' then found = type(limit.per) == 'table' and limit.per[label] end
  return type(found) == 'number' and found or nil
end

local function leave(part)
  local _, line, called, claims = keys(part)
  redis.call('ZREM', line, session)
  redis.call('ZREM', called, session)
  redis.call('ZREM', claims, session)
end

-- How many holders are free for somebody who came then; negative: so many too few.
local function free(part, limit, since)
  local held, line = keys(part)
  local before = since and redis.call('ZCOUNT', line, '-inf', '(' .. since) or redis.call('ZCARD', line)
  return limit - redis.call('ZCARD', held) - before
end

-- Call those in front of a line for whom there is room.
local function call(part, settled)
  local held, line, called = keys(part)
  if settled then redis.call('ZREMRANGEBYSCORE', held, '-inf', now) end
  local limit, room = most(part), redis.call('ZCARD', line)
  if room == 0 then
    redis.call('ZREM', lines, ask.parts[part])
    return
  end
  if ask.op == 'call' then redis.call('ZADD', lines, now, ask.parts[part]) end  -- the next pass looks at others first
  if limit == false then return end
  if limit then room = math.min(room, limit - redis.call('ZCARD', held)) end
  if room <= 0 then return end
  for _, name in ipairs(redis.call('ZRANGE', line, 0, math.min(room, MOST) - 1)) do
    local at = tonumber(redis.call('ZSCORE', called, name) or '')
    if not at or at <= now - AGAIN then
      redis.call('ZADD', called, now, name)
      for _, word in ipairs({part, name, at and 1 or 0, now}) do calls[#calls + 1] = word end
    end
  end
end

local function take()
  local limits, newest, since, closed, refused = {}, now, nil, nil, nil
  for part = 1, #ask.parts do
    limits[part] = most(part)
    if limits[part] == 'another' then return {-2} end
    local held, line, _, claims = keys(part)
    local is_closed = limits[part] == false or limits[part] == 0
    if is_closed and not redis.call('ZSCORE', held, id) then closed = closed or part end
    local stands = tonumber(redis.call('ZSCORE', claims, session) or '')
    if ask.claimed and not ask.again and stands and stands > ask.claimed then return {-3} end
    local at = tonumber(redis.call('ZSCORE', line, session) or '')
    if at and (not since or at < since) then since = at end
  end
  refused = closed
  for part = 1, closed and 0 or #ask.parts do
    local held = keys(part)
    if limits[part] and not redis.call('ZSCORE', held, id) and free(part, limits[part], since) <= 0 then
      refused = part
      break
    end
  end
  if refused then
    local held = redis.call('ZCARD', (keys(refused)))
    for part = closed or 1, ask.stand and not since and refused or 0 do
      local _, line = keys(part)
      local last = redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')[2]
      newest = math.max(newest, tonumber(last or 0) + 1)  -- no two come at the same time
    end
    if ask.stand then
      for part = 1, #ask.parts do
        local _, line, called, claims = keys(part)
        if part > refused or (closed and part < refused) then
          leave(part)
          call(part)
        else
          redis.call('ZADD', line, since or newest, session)
          redis.call('ZADD', claims, ask.claimed, session)
          local name = ask.parts[part]
          if not redis.call('ZSCORE', lines, name) then redis.call('ZADD', lines, now, name) end
          if part == refused then redis.call('ZREM', called, session) end
        end
      end
    end
    return {0, now, refused, limits[refused] or -1, held, calls}
  end
  local others = 0
  for part = 1, #ask.parts do
    local held, line = keys(part)
    redis.call('ZADD', held, now + ask.lease, id)
    redis.call('PEXPIRE', held, ask.lease + HOUR)
    if ask.op == 'take' and not ask.again then leave(part) end
    if limits[part] and redis.call('ZCARD', line) > 0 then others = 1 end
  end
  return {1, now, others}
end

local function look()
  local _, line, called = keys(1)
  local limit, since = most(1), tonumber(redis.call('ZSCORE', line, session) or '')
  if not since or limit == nil or (limit and free(1, limit, since) > 0) then return {1} end
  redis.call('ZREM', called, session)  -- whoever has called it just now could not wake it
  return {0}
end

if ask.op == 'take' then return take() end
if ask.op == 'keep' then
  for part = 1, #ask.parts do
    if not redis.call('ZSCORE', (keys(part)), id) then return {0} end
  end
  return take()
end
if ask.op == 'look' then return look() end
for part = 1, #ask.parts do
  local held, _, called, claims = keys(part)
  if ask.op == 'give' then redis.call('ZREM', held, id) end
  if ask.op == 'leave' then
    local at = redis.call('ZSCORE', ask.mark and called or claims, session)
    if tonumber(at or '') == (ask.mark or ask.claimed) then leave(part) end
  end
  call(part, ask.settled)
end
return calls
