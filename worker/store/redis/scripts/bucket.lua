-- Reserves a request to a model provider, or settles one; docs/protocol.md, "Buckets". Times are Redis ms.
-- KEYS: bucket, held (reservation → end of its lease), line (session → appointment), failures (→ when), calls, flow; in a
-- cluster, where leases are on other nodes: alive (worker → until when)
-- ARGV: JSON of what is asked. Always: op, id (of the reservation: its lease or worker, a blank, the call), session, digest, names,
-- channel, limits (that were set) and cost by dimension. To reserve: lease. To settle: at (when it was admitted, 0 never),
-- kind, retry (after), source, worker, ended (its calls of the last minute), accepted, busy, longest (wait), and by
-- dimension used, told (limits), remaining, reset.
-- reserve gives {1, now, is probe} or {0, now, wait, why, dimension, limit, source, since}; settle gives {opened, closed,
-- learned, refused}.
-- Its first write is one that a full Redis takes: a bucket is small, and a step must not end because of it.
local bucket, held, line, failures, calls, flow, alive = unpack(KEYS)
local ask = cjson.decode(ARGV[1])
local id, session, name = ask.id, ask.session, 'bucket:' .. ask.digest
local DIMENSIONS = {'requests', 'tokens', 'input_tokens', 'output_tokens'}
local REFUSAL, SOON, MINUTE, QUARTER, HOUR, DAY = 500, 5000, 60000, 900000, 3600000, 86400000
-- Few are refused: one for so many answers. So many answers at most count, so that a limit that sinks is heard soon.
local FEW, MOST = 10, 60
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local fields, changed = {}, {}
local flat = redis.call('HGETALL', bucket)
for i = 1, #flat, 2 do fields[flat[i]] = flat[i + 1] end

local function number(name) return tonumber(fields[name] or '') or 0 end
local function text(value) return string.format('%.3f', value) end
local function whole(value) return string.format('%.0f', value) end
local function put(name, value)
  fields[name] = value
  changed[name] = true
end

local function save()
  local words = {}
  for name in pairs(changed) do
    if fields[name] then
      words[#words + 1] = name
      words[#words + 1] = fields[name]
    else
      redis.call('HDEL', bucket, name)
    end
  end
  if #words > 0 then redis.call('HSET', bucket, unpack(words)) end
  redis.call('PEXPIRE', bucket, HOUR + math.max(number('not_before') - now, 0))
end

-- What was learned of a dimension, where it comes from, and without its growth; nil where nothing was.
local function learned(dimension)
  local rate, source, at = string.match(fields['learned:' .. dimension] or '', '^([%d.]+) (%a+) (%d+)$')
  if not rate or now - at >= HOUR then return nil end
  rate = tonumber(rate)
  local base = rate
  -- What was concluded from refusals grows until the next one: quickly before the second, later 5 % a minute.
  if source == 'refusals' then
    rate = rate * (1 + (number('refusals') > 1 and 0.05 or 1.2) * (now - at) / MINUTE)
  end
  return rate, source, base
end

local function learn(dimension, rate, source)
  put('learned:' .. dimension, text(rate) .. ' ' .. source .. ' ' .. whole(now))
end

-- The limit that holds, what the request costs, both in units, the ms that a unit takes, the limit's source, and the limit
-- without its growth; nil without a limit.
local function limit_of(dimension)
  local set, rate, source, base = ask.limits[dimension], learned(dimension)
  if set and (not rate or set <= rate) then rate, source, base = set, 'set', set end
  if not rate or rate <= 0 then return nil end
  return rate, math.min(ask.cost[dimension] or 0, rate), MINUTE / rate, source, base
end

-- A provider may allow no more at once than in a second, and the network squeezes requests together.
local function burst_of(dimension, ms) return math.max(dimension == 'requests' and 500 or 1000, ms) end

local function is_alive(reservation)
  if not redis.call('ZSCORE', held, reservation) then return false end
  local owner = string.match(reservation, '^%S+')
  if alive then return tonumber(redis.call('ZSCORE', alive, owner) or 0) > now end
  return redis.call('EXISTS', owner) == 1
end

local function interval()
  local away = number('away')
  return away > 0 and math.min(math.max((now - away) / 10, 5000), 600000) or QUARTER
end

-- The appointment of the first or last other session in the line.
local function appointment(command)
  local found = redis.call(command, line, 0, 1, 'WITHSCORES')
  if found[1] == session then return tonumber(found[4] or '') end
  return tonumber(found[2] or '')
end

-- Why nothing may go, and until when; or that this request is the probe.
local function blocked()
  local away, not_before = number('away'), number('not_before')
  if away == 0 and not_before <= now then return nil end
  local why, free = away > 0 and 'breaker' or fields.why, number('probe_at')
  if now < free then return why, free end
  if not fields.probe or not is_alive(fields.probe) then return nil, nil, true end
  free = now + interval()
  return why, away > 0 and free or math.min(free, not_before)
end

local function widen(window)
  put('window', window < 64 and whole(window * 2) or nil)
  put('window_at', whole(now))
end

-- Whether as many are in flight as a refusal has left. A success doubles that; so does the time in which one is refused.
local function is_window_full()
  local window = number('window')
  if window == 0 or redis.call('ZCARD', held) < window then return false end
  for _, other in ipairs(redis.call('ZRANGE', held, 0, -1)) do
    if not is_alive(other) then redis.call('ZREM', held, other) end
  end
  if redis.call('ZCARD', held) < window then return false end
  if now - math.max(number('window_at'), number('not_before')) < REFUSAL then return true end
  widen(window)
  return false
end

local function refuse(found, free, spacing, own)
  if spacing == 0 then spacing = 100 end
  if number('away') > 0 then spacing = math.max(spacing, 1000) end
  local at = own
  if not (own and own > now and own >= free) then
    local last = appointment('ZREVRANGE')
    at = math.max(free, now + 1)
    if last then at = math.max(at, last + spacing) end
    at = math.ceil(math.min(at, now + DAY))
    redis.call('ZADD', line, whole(at), session)
    redis.call('ZREMRANGEBYSCORE', line, '-inf', whole(now - MINUTE))
    redis.call('PEXPIRE', line, whole(at - now + MINUTE))
  end
  local since = found.why == 'breaker' and number('away') or number('not_before')
  return {0, now, math.max(at - now, 1), found.why, found.dimension or '', text(found.limit or 0), found.source or '', since}
end

local function reserve()
  redis.call('ZREMRANGEBYSCORE', held, '-inf', whole(now))
  if #flat == 0 then redis.call('HSETNX', flow, name, '0 ' .. ask.names) end
  if redis.call('ZSCORE', held, id) then return {1, now, fields.probe == id and 1 or 0} end
  local own = tonumber(redis.call('ZSCORE', line, session) or '')
  for _, dimension in ipairs(DIMENSIONS) do
    if ask.limits[dimension] == 0 then
      return refuse({why = 'zero', dimension = dimension, limit = 0, source = 'set'}, now + QUARTER, 0, own)
    end
  end
  local why, free, is_probe = blocked()
  if not why and not is_probe and is_window_full() then why, free = 'window', now + 100 end
  local is_due = own and own <= now
  local rate_free, after, spacing, held_by, longest, starts = now, 0, 0, nil, nil, {}
  for _, dimension in ipairs(DIMENSIONS) do
    local limit, cost, ms, source = limit_of(dimension)
    if limit then
      local arrival, takes, burst = number('at:' .. dimension), cost * ms, burst_of(dimension, ms)
      local room = math.max(burst - takes, 0)
      local here = {dimension = dimension, limit = limit, source = source}
      if arrival - room > rate_free then rate_free, held_by = arrival - room, here end
      -- Where only one may go at once, one who is late for its appointment counts from then: no capacity is lost.
      local start = is_due and room == 0 and math.max(own, now - 1000) or now
      starts[dimension] = math.max(arrival, start) + takes
      after = math.max(after, starts[dimension] - room)
      if takes > spacing then spacing, longest = takes, here end
    end
  end
  local found = {why = why}
  if not why and not is_probe then
    if rate_free > now then
      found, free = held_by, rate_free
      found.why = 'rate'
    elseif spacing > 0 and not is_due then
      -- A newcomer goes where that keeps nobody from an appointment.
      local first = appointment('ZRANGE')
      if first and after > math.max(first, now) then
        found, free = longest, now
        found.why = 'rate'
      end
    end
  end
  if found.why then return refuse(found, free, spacing, own) end
  redis.call('ZADD', held, whole(now + ask.lease), id)
  if redis.call('PTTL', held) < ask.lease then redis.call('PEXPIRE', held, whole(ask.lease)) end
  if alive then
    redis.call('ZADD', alive, whole(now + ask.alive), string.match(id, '^%S+'))
    redis.call('ZREMRANGEBYSCORE', alive, '-inf', whole(now))
    redis.call('PEXPIRE', alive, HOUR)
  end
  if own then redis.call('ZREM', line, session) end
  for dimension, start in pairs(starts) do put('at:' .. dimension, text(start)) end
  if is_probe then
    put('probe', id)
    put('probe_at', whole(now + interval()))
  end
  save()
  return {1, now, is_probe and 1 or 0}
end

-- Moves the arrival times by what was used more or less than reserved; a rate that passed a minute ago is not given back.
local function charge(at)
  for _, dimension in ipairs(DIMENSIONS) do
    local limit, cost, ms = limit_of(dimension)
    local used = ask.used[dimension]
    if limit and used then
      local more = (math.min(used, limit) - cost) * ms
      if more > 0 or now - at < MINUTE then put('at:' .. dimension, text(number('at:' .. dimension) + more)) end
    end
  end
end

-- Takes over what the provider says of its limits; its word outranks our arithmetic, but not a limit that was set.
local function listen()
  local taught = 0
  for _, dimension in ipairs(DIMENSIONS) do
    local limit, remaining = ask.told[dimension], ask.remaining[dimension]
    if limit and limit > 0 then
      local known, source = learned(dimension)
      if source ~= ask.source or math.abs(known - limit) > limit / 100 then taught = 1 end
      learn(dimension, limit, ask.source)
      if remaining then
        local ms = MINUTE / limit
        local free = remaining - redis.call('ZCARD', held) * (ask.cost[dimension] or 0)
        local arrival = now + math.max(burst_of(dimension, ms) - free * ms, 0)
        if ask.limits[dimension] then arrival = math.max(arrival, number('at:' .. dimension)) end
        put('at:' .. dimension, text(arrival))
      end
    end
  end
  return taught
end

-- Whether a refusal says something that the last one has not: its request was sent after that.
local function is_new(at, is_fresh)
  if at == 0 then return now - number('refused') > MINUTE end
  return is_fresh and at >= number('refused')
end

-- No request before the time that the provider asks for. Refusals in a row double it, up to 8 s.
local function hold_back(kind, row)
  local wait = ask.retry
  for _, dimension in ipairs(DIMENSIONS) do
    local reset = ask.reset[dimension]
    if not ask.retry and ask.remaining[dimension] == 0 and reset and reset > 0 then wait = math.min(wait or reset, reset) end
  end
  if kind == 'outage' and not wait then return 0 end
  if row > 0 then wait = math.max(wait or 0, 1000 * 2 ^ math.min(row, 3)) end
  wait = math.min(wait or (kind == 'quota' and ask.longest or 1000), ask.longest)
  if now + wait > number('not_before') then
    put('not_before', whole(now + wait))
    put('why', kind == 'quota' and 'quota' or 'not_before')
    if number('away') == 0 then put('probe_at', whole(math.min(now + wait, now + QUARTER))) end
  end
  return wait
end

-- What is concluded from refusals: the answers since the bucket was idle, by that time and what the provider asks to wait.
local function conclude(span) return MINUTE * math.max(number('accepted'), 1) / math.max(span, 1) end

local function counts_more()
  return number('refusals') == 1 and now - number('refused') < MINUTE
end

local function accept(at, is_fresh)
  if at == 0 then
    if counts_more() and redis.call('HSETNX', calls, 'a:' .. id, 1) == 1 then
      put('accepted', whole(number('accepted') + 1))
      learn('requests', conclude(number('span')), 'refusals')
    end
  elseif is_fresh then
    put('passed', whole(math.min(number('passed') + 1, MOST)))
    local window = number('window')
    if at >= number('refused') then
      put('row', nil)
      if window > 0 then widen(window) end
    end
    if number('busy') == 0 or now - number('last') > 5000 and redis.call('ZCARD', held) == 0 then
      put('busy', whole(at))
      put('accepted', '0')
    end
    put('accepted', whole(number('accepted') + 1))
    put('last', whole(now))
  end
end

-- Learns from a refusal of the rate. 0: the request was in flight when the last one came.
local function be_refused(at, is_fresh, wait)
  local rate, _, _, source, base = limit_of('requests')
  local passed = number('passed')
  if is_fresh then put('passed', whole(math.max(passed - FEW, 0))) end
  if not is_new(at, is_fresh) then
    if at == 0 and counts_more() and redis.call('HSETNX', calls, 'a:' .. ask.worker, 1) == 1 then
      put('accepted', whole(number('accepted') + ask.accepted))
      learn('requests', conclude(number('span')), 'refusals')
    end
    return 0
  end
  local is_soon, row = now - number('refused') < SOON, number('row')
  put('row', whole(row + 1))
  put('refused', whole(now))
  put('window', '1')
  put('window_at', whole(now))
  if source == 'header' or source == 'text' then return 1 end
  if rate and row > 0 then return 1 end -- nothing has passed that could tell of another rate
  if rate then
    -- What held so far was nearly right, unless it is refused again and again. While few are refused, it loses no more
    -- than it has grown by: a provider whose capacity others use up refuses at any rate, and would sink it for good.
    local less = (is_soon and 0.7 or 0.9) * rate
    if passed >= FEW then less = math.max(less, base) end
    learn('requests', less, 'refusals')
    put('refusals', '2')
    return 1
  end
  if at == 0 or number('busy') == 0 then
    redis.call('HSETNX', calls, 'a:' .. ask.worker, 1)
    put('accepted', whole(ask.accepted))
    put('busy', whole(now - ask.busy))
  end
  local span = now - number('busy') + wait
  put('span', whole(span))
  put('refusals', '1')
  learn('requests', conclude(span), 'refusals')
  return 1
end

-- Counts a failure, and opens the breaker or puts the next probe off.
local function fail(is_probe)
  local earliest = math.min(number('not_before'), now + QUARTER)
  if number('away') > 0 then
    if is_probe then
      put('probe', nil)
      put('probe_at', whole(math.max(now + interval(), earliest)))
    end
    return 0
  end
  redis.call('ZADD', failures, whole(now), session .. ' ' .. id)
  redis.call('ZREMRANGEBYSCORE', failures, '-inf', whole(now - MINUTE))
  redis.call('PEXPIRE', failures, MINUTE)
  local failed, all, sessions, distinct = redis.call('ZCARD', failures), 0, {}, 0
  for _, member in ipairs(redis.call('ZRANGE', failures, 0, 49)) do
    local name = string.match(member, '^%S+')
    if not sessions[name] then distinct = distinct + 1 end
    sessions[name] = true
  end
  local told = redis.call('HGETALL', calls)
  for i = 1, #told, 2 do
    local count, at = string.match(told[i + 1], '^(%d+) (%d+)$')
    if count and now - at < MINUTE then all = all + count end
  end
  if failed < 5 or distinct < 3 or failed * 2 < all then return 0 end
  put('away', whole(now))
  put('probe', nil)
  put('probe_at', whole(math.max(now + interval(), earliest)))
  return 1
end

-- The provider has answered its probe.
local function come_back(kind)
  local closed = number('away') > 0
  put('probe', nil)
  if closed then
    put('away', nil)
    put('probe_at', nil)
    redis.call('DEL', failures, calls)
  end
  if kind == 'ok' and number('not_before') > now then
    put('not_before', nil)
    put('why', nil)
    closed = true
  end
  if closed then put('closed_by', id) end
end

-- Lets all workers ask the bucket, as long as it has learned something or holds requests back.
local function announce()
  local until_ms = number('not_before')
  local has_learned = until_ms > now or number('away') > 0
  for _, dimension in ipairs(DIMENSIONS) do has_learned = has_learned or learned(dimension) ~= nil end
  if not has_learned then return end
  until_ms = math.max(until_ms, now + HOUR)
  local known = tonumber(string.match(redis.call('HGET', flow, name) or '', '^%d+')) or 0
  if known < until_ms - HOUR / 2 then redis.call('HSET', flow, name, whole(until_ms) .. ' ' .. ask.names) end
  if known <= now then redis.call('PUBLISH', ask.channel, name) end
end

local function settle()
  local is_fresh = redis.call('ZREM', held, id) == 1
  local at, kind, is_probe = ask.at, ask.kind, fields.probe == id
  if is_fresh then charge(at) end
  local taught, refused, opened, wait = listen(), 0, 0, 0
  if is_probe and kind ~= 'outage' then come_back(kind) end
  if kind == 'ok' then accept(at, is_fresh) end
  if kind == 'rate_limit' or kind == 'quota' or kind == 'outage' then
    wait = hold_back(kind, kind == 'rate_limit' and is_new(at, is_fresh) and number('row') or 0)
  end
  if kind == 'rate_limit' then refused = be_refused(at, is_fresh, wait) end
  if kind == 'outage' or redis.call('EXISTS', failures) == 1 then
    redis.call('HSET', calls, 'n:' .. ask.worker, whole(ask.ended) .. ' ' .. whole(now))
  end
  if kind == 'outage' then opened = fail(is_probe) end
  redis.call('PEXPIRE', calls, MINUTE)
  -- Appointments that were made at a much lower rate, or while nothing could go, are no good any more.
  local rate, closed = learned('requests') or 0, fields.closed_by == id
  local is_free = number('not_before') <= now
  if closed or is_free and number('line_rate') > 0 and rate >= 1.15 * number('line_rate') then
    redis.call('DEL', line)
    closed = true
  end
  if closed or number('line_rate') == 0 or rate < number('line_rate') then put('line_rate', text(rate)) end
  announce()
  save()
  return {opened, closed and 1 or 0, math.max(taught, refused), refused}
end

return ask.op == 'reserve' and reserve() or settle()
