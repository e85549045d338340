import { effect, signal } from '@preact/signals'
import type { Role } from '../../../../core/http/roles.ts'
import { type ApiError, ask, isKeyWanted, key, useKey } from './api.ts'
import { connection } from './server-state.ts'

/** The reply of /api/whoami. */
export interface Me {
  role: Role
  key?: { name: string }
  session?: { id: string }
  budgets: { name: string }[]
  /** How to get a higher role. */
  more?: string
}

/** Undefined until the server has replied. */
export const me = signal<Me | undefined>(undefined)

/** Asks for the role at the start and whenever it may have changed. */
export function watchIdentity(): void {
  effect(() => {
    key.value
    if (isKeyWanted.value || connection.value === 'offline') return
    ask<Me>('GET', 'api/whoami').then(
      found => (me.value = found),
      () => undefined
    )
  })
}

const ROLES: readonly Role[] = ['user', 'operator', 'admin']

/** Whether the user has a role. */
export const may = (role: Role) => me.value !== undefined && ROLES.indexOf(me.value.role) >= ROLES.indexOf(role)

/** Exchanges the link that opened the page for a session. @returns why that failed, or an empty text */
export async function redeemLink(): Promise<string> {
  const token = /^#open=(.+)$/.exec(location.hash)?.[1]
  if (token === undefined) return ''
  // The link works only once and must not stay in the history.
  history.replaceState(null, '', '#/')
  dispatchEvent(new HashChangeEvent('hashchange'))
  try {
    const { key } = await ask<{ key: string }>('POST', 'api/sessions', { body: { token: decodeURIComponent(token) } })
    useKey(key)
    return ''
  } catch (error) {
    return (error as ApiError).message
  }
}

/** Signs in with a key. @param stays whether this browser stays signed in after the tab is closed */
export async function signIn(given: string, stays: boolean): Promise<void> {
  useKey(given)
  if (stays) useKey((await ask<{ key: string }>('POST', 'api/sessions/stay', { body: {} })).key, true)
}

/** Ends the session of this browser, or removes the key of this tab. */
export async function signOut(): Promise<void> {
  await ask('DELETE', 'api/sessions/current').catch(() => undefined)
  useKey('')
}
