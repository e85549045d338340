import type { IncomingMessage } from 'node:http'
import { isIPv6 } from 'node:net'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { Time } from '../../../core/contracts/native-records.ts'

export const PAIR_PATH = '/api/link/pair'
export const HELLO_PATH = '/api/link/hello'

/** Has this machine's certificate, and the linked machines. */
export const linkFile = (home: string) => join(home, 'link.json')

/** What a linked machine may do here, in ascending order. */
export const PERMISSIONS = ['ask', 'pull', 'administer'] as const
export type Permission = (typeof PERMISSIONS)[number]

export const MACHINE_NAME = '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'
const MAX_ADDRESSES = 8

const Addresses = Type.Array(Type.String({ minLength: 1, maxLength: 64 }), { maxItems: 2 * MAX_ADDRESSES })
const Port = Type.Integer({ minimum: 1, maximum: 65_535 })

/** What a machine tells another one about itself. */
export const AboutSchema = Type.Object({
  machine: Type.String({ pattern: MACHINE_NAME, description: 'Its name' }),
  port: Port,
  addresses: Addresses,
  /** MAC addresses, for Wake-on-LAN. */
  macs: Type.Array(Type.String({ pattern: '^([0-9a-f]{2}:){5}[0-9a-f]{2}$' }), { maxItems: 16 })
})
export type About = Static<typeof AboutSchema>

/** What two machines exchange when they are linked. */
export const IntroductionSchema = Type.Object({
  ...AboutSchema.properties,
  certificate: Type.String({ maxLength: 10_000 })
})
export type Introduction = Static<typeof IntroductionSchema>

export const MachineSchema = Type.Object({
  ...Type.Omit(IntroductionSchema, ['machine']).properties,
  name: Type.String({ pattern: MACHINE_NAME }),
  id: Type.String(),
  may: Type.Enum([...PERMISSIONS]),
  linked_at: Time()
})
/** A linked machine. */
export type Machine = Static<typeof MachineSchema>

export const originOf = (address: string, port: number) =>
  `https://${isIPv6(address) ? `[${address}]` : address}:${port}`

/** Returns addresses without duplicates, the first ones first. */
export const latestAddresses = (...addresses: readonly string[]) => [...new Set(addresses)].slice(0, MAX_ADDRESSES)

/** Requests that each permission allows, in addition to the lower permissions. */
const ALLOWED: Record<Exclude<Permission, 'administer'>, RegExp> = {
  ask: /^(GET \/api\/events|POST \/api\/cluster\/(ask|describe|tickets|tickets\/redeem)|(GET|HEAD) \/api\/cluster\/files\/[0-9a-f]{64}|POST \/api\/link\/hello)$/,
  pull: /^(POST \/api\/(pull|load|stop|cluster\/copy)|(GET|POST) \/api\/pulls(\/.*)?|GET \/api\/(tags|ps|version))$/
}

/** Whether a machine may send a request. @param request such as `POST /api/pull`, without a query */
export function mayRequest(may: Permission, request: string): boolean {
  if (may === 'administer') return true
  return ALLOWED.ask.test(request) || (may === 'pull' && ALLOWED.pull.test(request))
}

const senders = new WeakMap<IncomingMessage, Machine | 'stranger'>()

/** Remembers who sent a request. */
export const setSender = (request: IncomingMessage, sender: Machine | 'stranger') => void senders.set(request, sender)

/** The linked machine that sent a request, or `stranger` for a machine that wants to be linked. */
export const senderOf = (request: IncomingMessage) => senders.get(request)
