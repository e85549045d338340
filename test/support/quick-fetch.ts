import type { Agent as AgentClass, fetch as FetchFunction } from 'undici'

/*
 * The fetch of Node.js, and its class of agents, which has no name. Most test files use only these two of undici, and its
 * package takes four times as much processor time to load.
 */

// The first use of this global loads both.
void globalThis.Headers
const dispatcher = (globalThis as any)[Symbol.for('undici.globalDispatcher.1')]

export const Agent = dispatcher.constructor as typeof AgentClass
export const fetch = globalThis.fetch as unknown as typeof FetchFunction
