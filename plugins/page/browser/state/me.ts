import { effect, signal } from '@preact/signals'
import { ask, isKeyWanted, key } from './api.ts'
import { connection } from './server-state.ts'

/** Who the server takes this browser for. */
export interface Me {
  role: 'user' | 'operator' | 'admin'
  keyless: boolean
  key?: { name: string }
  /** How to be allowed more. */
  more?: string
  /** Where it is a session of `corral open`. */
  session?: { expires_at: string }
}

/** Undefined until the server has said it. */
export const me = signal<Me | undefined>(undefined)

/** Asks the server who one is, at the start and whenever that may have changed. */
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

/** Whether one may do what needs a role. */
export const may = (role: Me['role']) => me.value !== undefined && ROLES.indexOf(me.value.role) >= ROLES.indexOf(role)
