-- Ends the wait of sessions whose agent a worker has registered; parked ones come back.
-- KEYS: unoffered, due; for each session: its hash, control fields, events
-- ARGV: now, events kept, wait ms (0: the sweep publishes the steps), agent, number of queues, the queues that the worker
-- takes, the preferred first; then the ids of the sessions
-- Gives the steps that are to be published now.
local now, wait, agent, last = tonumber(ARGV[1]), tonumber(ARGV[3]), ARGV[4], 5 + tonumber(ARGV[5])
local taken, free = {}, {}
for i = 6, last do taken[ARGV[i]] = true end
for i = 1, #ARGV - last do
  local sid, session, ctl, stream = ARGV[last + i], unpack(KEYS, 3 * i, 3 * i + 2)
  local waited = redis.call('ZREM', KEYS[1], agent .. ' ' .. sid) == 1
  local f = redis.pcall('HMGET', ctl, 'execution', 'step', 'phase', 'queue', 'started', 'not_before', 'held', 'claim',
    'retries', 'legs', 'lane')
  if waited and (not f.err) and f[1] then
    redis.call('HDEL', ctl, 'unoffered')
    local queue = f[4] or ''
    if not taken[queue] then
      queue = ARGV[6]
      redis.call('HSET', ctl, 'queue', queue)
    end
    -- A delayed or held session keeps its time.
    local due = math.max(now, tonumber(f[6] or '0') or 0, tonumber(f[7] or '0') or 0)
    if f[3] == 'parked' then
      redis.call('HSET', ctl, 'phase', 'run', 'attempts', 0)
      redis.call('HSET', session, 'status', (f[5] or '0') == '0' and 'pending' or 'in_progress')
      redis.call('ZADD', KEYS[2], due, sid)
    end
    if f[3] ~= 'end' then
      local is_free = wait > 0 and due <= now and (f[8] or '') == ''
      redis.call('HSET', ctl, 'published', is_free and now or 0, 'nudges', 0)
      redis.call('ZADD', KEYS[2], 'XX', is_free and now + wait or due, sid)
      if is_free then free[#free + 1] = {sid, f[1], f[2] or '0', f[9] or '0', f[10] or '0', queue, f[11] or ''} end
      redis.call('XADD', stream, 'MAXLEN', '~', ARGV[2], '*', 'type', 'worker_found',
        'execution', f[1], 'step', f[2] or '0', 'data', cjson.encode({agent = agent}))
    end
  end
end
return free
