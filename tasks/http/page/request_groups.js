// Open requests in the order of the inbox: by agent, and those of the same call together.

/** Put requests of the same call together: [[request, …], …], in the order of the first of each. */
export function groupEqual(requests) {
  const groups = new Map();
  for (const each of requests) {
    const name = JSON.stringify([each.agent, each.kind, each.to, each.call, each.text]);
    if (groups.has(name)) groups.get(name).push(each);
    else groups.set(name, [each]);
  }
  return [...groups.values()];
}

/** Put entries under the names of their agents, in the order of the oldest: [[agent, entries], …]. */
export function groupByAgent(entries) {
  const groups = new Map();
  for (const entry of entries) {
    const { agent } = entry[0];
    if (groups.has(agent)) groups.get(agent).push(entry);
    else groups.set(agent, [entry]);
  }
  return [...groups];
}
