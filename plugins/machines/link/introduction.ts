import { type Static, type TSchema, Type } from 'typebox'
import { Agent, request } from 'undici'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { checkJson, parseJson } from '../../../core/system/json-file.ts'
import { CERTIFICATE_NAME, type Identity, machineId } from './link-certificate.ts'
import type { Announced } from './link-discovery.ts'
import { type Introduction, IntroductionSchema, originOf, PAIR_PATH } from './link-records.ts'
import { enterCode, type SharedSecret } from './pairing.ts'

const PAIR_TIMEOUT_MS = 15_000

const BegunSchema = Type.Object({ attempt: Type.String(), response: Type.String() })
const SealedSchema = Type.Object({ sealed: Type.String() })

/**
 * Proves a code to the machine that shows it, and tells it about this one.
 * @returns what it tells about itself @throws CorralError `pairing_code_wrong`, `machine_unreachable`
 */
export async function introduceTo(
  { addresses, port }: Announced,
  code: string,
  { certificate, key }: Identity,
  introduction: Introduction
): Promise<Introduction> {
  // Nobody can know its certificate yet. The code proves who answers.
  const connect = { cert: certificate, key, servername: CERTIFICATE_NAME, rejectUnauthorized: false }
  const agent = new Agent({ connect })
  try {
    const { origin, entered, begun } = await firstToAnswer(addresses, async address => {
      const origin = originOf(address, port)
      const entered = await enterCode(code)
      return { origin, entered, begun: await post(agent, origin, { begin: entered.request }, BegunSchema) }
    })
    const done = entered.finish(begun.response)
    if (!done) {
      const message = 'The other machine shows another code. Check it, and try again. Three wrong codes cancel it.'
      throw new CorralError('pairing_code_wrong', message)
    }
    const finish = { attempt: begun.attempt, finish: done.request, sealed: done.secret.seal(introduction) }
    const { sealed } = await post(agent, origin, finish, SealedSchema)
    return readSealed(done.secret, sealed)
  } finally {
    await agent.destroy()
  }
}

/** Tries all addresses of a machine until one answers. @throws CorralError of an answer, or `machine_unreachable` */
async function firstToAnswer<Result>(addresses: readonly string[], attempt: (address: string) => Promise<Result>) {
  let reason = 'it has no address'
  for (const address of addresses) {
    try {
      return await attempt(address)
    } catch (error) {
      if (error instanceof CorralError) throw error
      reason = errorMessage(error)
    }
  }
  throw new CorralError(
    'machine_unreachable',
    `The other machine cannot be reached: ${reason}. Check that its firewall allows corral.`
  )
}

async function post<Schema extends TSchema>(
  agent: Agent,
  origin: string,
  body: object,
  schema: Schema
): Promise<Static<Schema>> {
  const reply = await request(origin + PAIR_PATH, {
    method: 'POST',
    dispatcher: agent,
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: abortAfter(PAIR_TIMEOUT_MS)
  })
  const text = await reply.body.text()
  if (reply.statusCode === 403)
    throw new CorralError(
      'pairing_code_wrong',
      parseJson(text, Type.Object({ error: Type.String() })).value?.error ?? 'The other machine refused the code.'
    )
  const { value, fault } = parseJson(text, schema)
  if (reply.statusCode === 200 && value) return value
  throw new Error(`what answers at ${origin} is not a corral${fault ? ` (${fault})` : ''}`)
}

export function readSealed(secret: SharedSecret, sealed: string): Introduction {
  try {
    const { value, fault } = checkJson(secret.open(sealed), IntroductionSchema)
    if (!value) throw new Error(fault)
    machineId(value.certificate)
    return value
  } catch (error) {
    throw new CorralError(
      'pairing_code_wrong',
      `The other machine sent what cannot be used (${errorMessage(error)}). Upgrade both to the same version, and link them again.`
    )
  }
}
