-- What is spent of spend caps; docs/protocol.md, "Spend caps". Money is in billionths of a US dollar.
-- KEYS: of each part: spent (value of the cap's label → money), held (reservation → money, a blank, the value)
-- ARGV: JSON of op, id (of the reservation), parts (of each: value, most, life in ms), nanos
-- reserve gives {1}, or {0, part, spent} where the part has not so much left: who asks for more than all of it counts as all. Asked again, it
-- reserves of the parts of which it has not reserved yet: caps may have been set since;
-- settle replaces what was reserved by nanos, negative: as it was reserved, and gives what is spent of each part: once. It does so for the
-- value for which it was reserved: the labels of a cap or a session may be others by now.
local ask = cjson.decode(ARGV[1])
local function keys(part) return KEYS[2 * part - 1], KEYS[2 * part] end

local function spent(part, value)
  local key = keys(part)
  return tonumber(redis.call('ZSCORE', key, value) or 0)
end

local function add(part, value, nanos)
  local key, held = keys(part)
  redis.call('ZADD', key, string.format('%.0f', spent(part, value) + nanos), value)
  redis.call('PEXPIRE', key, ask.parts[part].life)
  redis.call('PEXPIRE', held, ask.parts[part].life)
end

if ask.op == 'settle' then
  local found = {}
  for part, each in ipairs(ask.parts) do
    local _, held = keys(part)
    local reserved, value = string.match(redis.call('HGET', held, ask.id) or '', '^(%d+) (.*)$')
    value = value or each.value
    if reserved then
      redis.call('HDEL', held, ask.id)
      if ask.nanos >= 0 then add(part, value, ask.nanos - tonumber(reserved)) end
    end
    found[part] = string.format('%.0f', spent(part, value))
  end
  return found
end

local missing = {}
for part, each in ipairs(ask.parts) do
  local _, held = keys(part)
  if not redis.call('HGET', held, ask.id) then
    local now = spent(part, each.value)
    if now >= each.most or now + math.min(ask.nanos, each.most) > each.most then
      return {0, part, string.format('%.0f', now)}
    end
    table.insert(missing, part)
  end
end
for _, part in ipairs(missing) do
  local _, held = keys(part)
  local value = ask.parts[part].value
  redis.call('HSET', held, ask.id, string.format('%.0f %s', ask.nanos, value))
  add(part, value, ask.nanos)
end
return {1}
