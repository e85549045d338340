import { effect, signal } from '@preact/signals'
import { ask, isKeyWanted, key } from './api.ts'
import { connection } from './server-state.ts'

/** The reply of /api/whoami. */
export interface Me {
  role: 'user' | 'operator' | 'admin'
  keyless: boolean
  key?: { name: string }
  /** How to get a higher role. */
  more?: string
  /** Present for a session of `corral open`. */
  session?: { expires_at: string }
}

/** Undefined until the server has replied. */
export const me = signal<Me | undefined>(undefined)

/** Asks for the role at the start and whenever it may have changed. */
export function followMe(): void {
  effect(() => {
    key.value
    if (isKeyWanted.value || connection.value === 'offline') return
    ask<Me>('GET', 'api/whoami').then(
      found => {
        me.value = found
      },
      () => undefined
    )
  })
}

const ROLES = ['user', 'operator', 'admin'] as const

/** Whether the user has a role. */
export const may = (role: Me['role']) => me.value !== undefined && ROLES.indexOf(me.value.role) >= ROLES.indexOf(role)
