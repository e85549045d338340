import { createCipheriv, createDecipheriv, hkdfSync, randomBytes, randomInt } from 'node:crypto'
import * as opaque from '@serenity-kit/opaque'
import { CorralError } from '../../../core/errors.ts'

/*
 * How two machines that share a short code agree on a secret: OPAQUE (RFC 9807), an authenticated key exchange. The code
 * is never sent, somebody in between learns nothing, and each guess needs its own attempt at the machine
 * that shows the code. What they then tell each other is sealed with the secret.
 */

/** Without letters and digits that look or sound alike. */
const ALPHABET = 'ABCDEFGHJKMNPQRSTVWXYZ23456789'
const CODE_LENGTH = 8
/** The first letters are not secret: they tell which machine in the network shows the code. */
const HINT_LENGTH = 2
export const CODE_TTL_MS = 10 * 60_000
const MAX_ATTEMPTS = 3
const USER = 'link'
/** The code lives for minutes and cannot be guessed offline, so slow stretching would protect nothing. */
const STRETCHING = { 'argon2id-custom': { iterations: 1, memory: 8192, parallelism: 1 } }

/** Returns a code without spaces, in capital letters. @throws CorralError `invalid_request` if it cannot be one */
export function parseCode(text: string): string {
  const code = text.replace(/[\s-]/g, '').toUpperCase()
  if (code.length === CODE_LENGTH && [...code].every(letter => ALPHABET.includes(letter))) return code
  throw new CorralError(
    'invalid_request',
    `${JSON.stringify(text.slice(0, 40))} is not a code: it has ${CODE_LENGTH} letters and digits, such as K7PM-3XQD. "corral link" on the other machine shows one.`,
    { param: 'code' }
  )
}

/** The part of a code that is announced in the network. */
export const codeHint = (code: string) => code.slice(0, HINT_LENGTH)

/** How people read it. */
export const formatCode = (code: string) => `${code.slice(0, 4)}-${code.slice(4)}`

export type ShownCode = Awaited<ReturnType<typeof showCode>>

/** Creates a code, and answers the machines that try one. */
export async function showCode(now: () => number = () => performance.now()) {
  await opaque.ready
  const code = Array.from({ length: CODE_LENGTH }, () => ALPHABET[randomInt(ALPHABET.length)]).join('')
  const serverSetup = opaque.server.createSetup()
  const { clientRegistrationState, registrationRequest } = opaque.client.startRegistration({ password: code })
  const { registrationResponse } = opaque.server.createRegistrationResponse({
    serverSetup,
    userIdentifier: USER,
    registrationRequest
  })
  const { registrationRecord } = opaque.client.finishRegistration({
    password: code,
    clientRegistrationState,
    registrationResponse,
    keyStretching: STRETCHING
  })
  const until = now() + CODE_TTL_MS
  const begun = new Map<string, string>()
  let attempts = 0
  let isOver = false

  const isOpen = () => !isOver && now() < until
  const refusal = () => {
    const why = isOpen() ? 'The code is wrong.' : 'The code has expired, was used, or was entered wrongly too often.'
    return new CorralError('pairing_code_wrong', `${why} Run "corral link" on the other machine for a new one.`)
  }

  return {
    code,
    isUsedUp: () => attempts >= MAX_ATTEMPTS,
    /** The first step of an attempt. @throws CorralError `pairing_code_wrong` */
    begin(startLoginRequest: string) {
      if (!isOpen() || attempts >= MAX_ATTEMPTS) throw refusal()
      attempts++
      const { serverLoginState, loginResponse } = attempt(() =>
        opaque.server.startLogin({ serverSetup, registrationRecord, userIdentifier: USER, startLoginRequest })
      )
      const id = randomBytes(16).toString('base64url')
      begun.set(id, serverLoginState)
      return { attempt: id, response: loginResponse }
    },
    /** The second step. @returns the shared secret @throws CorralError `pairing_code_wrong` */
    finish(id: string, finishLoginRequest: string): SharedSecret {
      const serverLoginState = begun.get(id)
      begun.delete(id)
      if (!isOpen() || serverLoginState === undefined) throw refusal()
      const { sessionKey } = attempt(() => opaque.server.finishLogin({ serverLoginState, finishLoginRequest }))
      isOver = true
      return sharedSecret(sessionKey, 'shows')
    },
    close() {
      isOver = true
    }
  }

  /** The library fails for a wrong code and for anything else that it cannot use. */
  function attempt<Result>(step: () => Result): Result {
    try {
      return step()
    } catch {
      if (attempts >= MAX_ATTEMPTS) isOver = true
      throw refusal()
    }
  }
}

/** The steps of the machine on which the code was entered. */
export async function enterCode(code: string) {
  await opaque.ready
  const { clientLoginState, startLoginRequest } = opaque.client.startLogin({ password: code })
  return {
    request: startLoginRequest,
    /** @returns undefined if the other machine shows another code */
    finish(loginResponse: string): { request: string; secret: SharedSecret } | undefined {
      const done = opaque.client.finishLogin({
        clientLoginState,
        loginResponse,
        password: code,
        keyStretching: STRETCHING
      })
      return done && { request: done.finishLoginRequest, secret: sharedSecret(done.sessionKey, 'enters') }
    }
  }
}

export type SharedSecret = ReturnType<typeof sharedSecret>

const ALGORITHM = 'aes-256-gcm'
const NONCE_BYTES = 12
const TAG_BYTES = 16

/** Seals messages with a secret that only both machines know. Each direction has its own key. */
function sharedSecret(sessionKey: string, role: 'shows' | 'enters') {
  const keyOf = (sender: string) =>
    Buffer.from(hkdfSync('sha256', Buffer.from(sessionKey, 'base64url'), '', `corral link, sent by: ${sender}`, 32))
  const [own, other] = [keyOf(role), keyOf(role === 'shows' ? 'enters' : 'shows')]
  return {
    seal(message: object): string {
      const nonce = randomBytes(NONCE_BYTES)
      const cipher = createCipheriv(ALGORITHM, own, nonce)
      const sealed = [cipher.update(JSON.stringify(message), 'utf8'), cipher.final()]
      return Buffer.concat([nonce, cipher.getAuthTag(), ...sealed]).toString('base64url')
    },
    /** Returns what the other machine sealed, unchecked. @throws Error if it did not */
    open(sealed: string): unknown {
      const bytes = Buffer.from(sealed, 'base64url')
      const decipher = createDecipheriv(ALGORITHM, other, bytes.subarray(0, NONCE_BYTES))
      decipher.setAuthTag(bytes.subarray(NONCE_BYTES, NONCE_BYTES + TAG_BYTES))
      const text = Buffer.concat([decipher.update(bytes.subarray(NONCE_BYTES + TAG_BYTES)), decipher.final()])
      return JSON.parse(text.toString('utf8'))
    }
  }
}
