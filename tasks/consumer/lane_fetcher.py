"""Taking turns: whose step a worker runs while more steps wait than there are slots.

A message that is a turn is given to the step whose share is next, by start-time fair queueing over the shares (P.
Goyal, H. M. Vin, H. Cheng: "Start-time Fair Queueing", SIGCOMM 1996). The cost of a step is the time for which it had
its slot, divided by the weight of its share. It is not known when the step is taken: it is estimated by the mean of
earlier ones, and corrected with the next turn that its worker takes. Within a share, 16 of 21 turns go to interactive
sessions, 4 to normal ones and 1 to bulk, as long as steps of all of them wait.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ...worker.errors import StateUnreadable, StoreUnavailable
from ...worker.flow.shares import FairShares, share_of
from ...worker.store.database import Command, Reply
from ...worker.store.lanes import read_waiting, script_keys
from ...worker.store.records import StepRef
from ..names import LANE_HEADER, TURN
from .queue_fetcher import FetchedElement, QueueFetcher
from .refusals import TURNS, refusals

log = logging.getLogger(__name__)

_IS_TURN: Final = f'"{LANE_HEADER}": "{TURN}"'.encode()

# KEYS: the queue's list; the shares of which steps wait, by the virtual time at which their next step begins; those of
# which none waits, by the time at which one may; the clock, and what is known besides. The lists of the lanes are named
# as in `lane_key`: only the script knows which it takes from.
# ARGV: turns, the last of their messages, the weights of shares that have another one than 1, then for each step that
# has ended: its share, seconds, and its estimate.
# Gives the estimate for the steps that are taken, then of each its lane and its entry.
_TAKE: Final = """
local queue, lanes, idle, state = unpack(KEYS)
local weights = cjson.decode(ARGV[3])
local now = tonumber(redis.call('HGET', state, 'now') or '0')
local mean = tonumber(redis.call('HGET', state, 'mean') or '1')
local function put(key, share, at) redis.call('ZADD', key, string.format('%.6f', at), share) end
local function weight(share) return weights[share] or 1 end
for _, share in ipairs(redis.call('ZRANGEBYSCORE', lanes, '-inf', '(0')) do
  put(lanes, share, math.max(now, tonumber(redis.call('ZSCORE', idle, share) or now)))
  redis.call('ZREM', idle, share)
end
for i = 4, #ARGV, 3 do
  local share, seconds, estimate = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local key = redis.call('ZSCORE', lanes, share) and lanes or idle
  local at = tonumber(redis.call('ZSCORE', key, share) or now)
  put(key, share, math.max(0, at + (seconds - estimate) / weight(share)))
  if estimate > 0 then mean = mean + 0.05 * (seconds - mean) end
end
local order = {}
for i = 0, 20 do order[i] = i % 5 == 4 and 1 or 0 end
order[10] = 2
local function next_share()
  while true do
    local found, waiting = redis.call('ZRANGE', lanes, 0, 0, 'WITHSCORES'), {}
    local share = found[1]
    if not share then return nil end
    for priority = 0, 2 do
      if redis.call('EXISTS', queue .. ':lane:' .. priority .. '/' .. share) == 1 then
        waiting[#waiting + 1] = priority
      end
    end
    if waiting[1] then return share, tonumber(found[2]), waiting end
    redis.call('ZREM', lanes, share)
    redis.call('HDEL', state, 'at:' .. share)
    put(idle, share, tonumber(found[2]))
  end
end
local function next_priority(share, waiting)
  if #waiting == 1 then return waiting[1] end
  local place, waits = tonumber(redis.call('HGET', state, 'at:' .. share) or '0'), {}
  for _, priority in ipairs(waiting) do waits[priority] = true end
  while not waits[order[place]] do place = (place + 1) % 21 end
  redis.call('HSET', state, 'at:' .. share, (place + 1) % 21)
  return order[place]
end
local taken = {string.format('%.6f', mean)}
while #taken < 2 * tonumber(ARGV[1]) do
  local share, start, waiting = next_share()
  if not share then break end
  local lane = next_priority(share, waiting) .. '/' .. share
  taken[#taken + 1], taken[#taken + 2] = lane, redis.call('RPOP', queue .. ':lane:' .. lane)
  now = math.max(now, start)
  put(lanes, share, start + mean / weight(share))
end
if not next_share() then  -- nobody waits: all begin anew together
  local latest = redis.call('ZREVRANGE', idle, 0, 0, 'WITHSCORES')[2]
  now = math.max(now, tonumber(latest or '0'))
elseif redis.call('EXISTS', queue) == 0 then  -- a turn was lost with a worker
  redis.call('LPUSH', queue, ARGV[2])
end
redis.call('HSET', state, 'now', string.format('%.6f', now), 'mean', taken[1])
redis.call('ZREMRANGEBYSCORE', idle, '-inf', string.format('%.6f', now))
return taken
"""


class _SlotUse(NamedTuple):
    """Time for which a share has had a slot.

    Attributes:
        estimate: For how much it was charged when the step was taken; 0: for nothing.
    """

    share: str
    seconds: float
    estimate: float


class LaneFetcher(QueueFetcher):
    """Takes messages, and for each turn among them the step whose share is next."""

    def __init__(
        self,
        *args: Any,
        write: Callable[[StepRef, int], bytes | None],
        names: Mapping[str, str],
        shares: Callable[[], FairShares | None],
        **options: Any,
    ) -> None:
        """
        Args:
            write: Writes the message of a step that was published at a time (Redis ms).
            names: The names that agents give to queues, by the broker's.
            shares: Tells the fair shares as they are set now.
            args, options: Those of `QueueFetcher`.
        """
        super().__init__(*args, **options)
        self._write = write
        self._names = names
        self._shares = shares
        self._written: tuple[FairShares | None, str] = (None, "{}")
        self._used: dict[str, list[_SlotUse]] = defaultdict(list)

    def charge(self, element: FetchedElement, seconds: float) -> None:
        """Charge the share of a step for the time for which it has had a slot, with the next turn that is taken."""
        if element.lane:
            self._used[element.queue].append(_SlotUse(share_of(element.lane), seconds, element.estimate))

    def _fetch(self, queues: Mapping[str, Sequence[str]], wanted: int) -> list[FetchedElement]:
        fetched = super()._fetch(queues, wanted)
        turns = [each for each in fetched if _IS_TURN in each.data]
        if not turns:
            return fetched
        others = [each for each in fetched if _IS_TURN not in each.data]
        counts = Counter(each.queue for each in turns)
        last = {each.queue: each for each in turns}
        used = {queue: self._used.pop(queue, []) for queue in counts}
        weights = self._weights()
        commands = [_take_command(last[queue], count, weights, used[queue]) for queue, count in counts.items()]
        replies: list[Reply]
        try:
            replies = self._database.exchange(commands)
        except StoreUnavailable as error:  # what was popped would be lost with it
            replies = [error] * len(commands)
        for (queue, turn), reply in zip(last.items(), replies, strict=True):
            if isinstance(reply, Exception):
                refusals.record(TURNS, f"Redis takes no turns, and steps run in the order of their messages: {reply}")
                others += [each for each in turns if each.queue == queue]
            else:
                others += self._read_taken(turn, reply)
        return others

    def _weights(self) -> str:
        """The weights of shares as they are set now, for the script."""
        shares = self._shares()
        if shares is not self._written[0]:
            self._written = shares, json.dumps({} if shares is None else {**shares.weights})
        return self._written[1]

    def _read_taken(self, turn: FetchedElement, reply: Reply) -> list[FetchedElement]:
        estimate, taken = float(reply[0]), list[FetchedElement]()
        for lane, entry in zip(reply[1::2], reply[2::2], strict=True):
            try:
                ref, published_ms = read_waiting(entry, queue=self._names[turn.queue], lane=lane.decode())
                data = self._write(ref, published_ms)
            except (StateUnreadable, UnicodeDecodeError) as error:  # the sweep publishes its step again
                log.warning("an entry of lane %s is dropped: %s", lane, error)
                continue
            if data is not None:
                taken.append(turn._replace(data=data, lane=ref.lane, estimate=estimate))
        return taken


def _take_command(turn: FetchedElement, count: int, weights: str, used: Sequence[_SlotUse]) -> Command:
    keys = (turn.key, *script_keys(turn.key))
    charges = (word for each in used for word in (each.share, f"{each.seconds:.6f}", f"{each.estimate:.6f}"))
    return ("EVAL", _TAKE, len(keys), *keys, count, turn.data, weights, *charges)
