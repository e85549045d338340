import type { Test } from 'tap'
import { type Corral, type CorralOptions, startCorral, until } from '../../../support/corral.ts'

/** A node of a gateway in a test. */
export interface NodeCorral {
  name: string
  url: string
  key?: string
}

/**
 * The configuration of a gateway.
 * @param cluster further lines of its section `cluster`, indented by two spaces
 */
export function gatewayConfig(members: readonly NodeCorral[], more = '', cluster = ''): string {
  const list = members.map(({ name, url, key }) => JSON.stringify({ name, url, ...(key !== undefined && { key }) }))
  return `cluster:\n  silence: 10s\n  members: [${list.join(', ')}]\n${cluster}${more}`
}

/** Nodes that have the built-in model, and their names at the gateway. */
export async function startNodes(t: Pick<Test, 'teardown'>, count: number, options: CorralOptions = {}) {
  const nodes = await Promise.all(Array.from({ length: count }, () => startCorral(t, options)))
  return { nodes, members: nodes.map(({ url }, index) => ({ name: `node-${index + 1}`, url })) }
}

/** A gateway without a model of its own. The built-in one would be preferred to that of its nodes. */
export async function startGateway(
  t: Pick<Test, 'teardown'>,
  members: readonly NodeCorral[],
  { config = '', cluster = '', ...options }: CorralOptions & { cluster?: string } = {}
): Promise<Corral> {
  const more = `storage:\n  demo_model: false\n${config}`
  return await startCorral(t, { ...options, config: gatewayConfig(members, more, cluster) })
}

/** A gateway that has reached all of its nodes. */
export async function startReadyGateway(...given: Parameters<typeof startGateway>): Promise<Corral> {
  const gateway = await startGateway(...given)
  await untilStates(gateway, Object.fromEntries(given[1].map(({ name }) => [name, 'up'])))
  return gateway
}

/** The nodes as a gateway shows them. */
export const getNodes = async (gateway: Corral): Promise<any[]> => (await gateway.json('/api/cluster')).body.members

/** Waits until nodes have these states. */
export async function untilStates(gateway: Corral, states: Record<string, string>): Promise<void> {
  await until(`members are ${JSON.stringify(states)}`, async () => {
    const found = Object.fromEntries((await getNodes(gateway)).map(({ name, state }) => [name, state]))
    return Object.entries(states).every(([name, state]) => found[name] === state)
  })
}
