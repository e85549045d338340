import type { Corral } from '../../support/corral.ts'

/** Uses the private socket. */
export const local = { local: true }

export const bearer = (key: string, more: Record<string, string> = {}) => ({
  headers: { authorization: `Bearer ${key}`, ...more }
})

/** Creates a key through the private socket. */
export async function newKey(corral: Corral, name: string, more: object = {}): Promise<string> {
  return (await corral.json('/api/keys', { name, ...more }, local)).body.key
}
