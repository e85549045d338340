/** Roles, the least first: each may do what those before it may. */
export const ROLES = ['user', 'operator', 'admin'] as const

/** `user` asks models, `operator` also manages them, `admin` also what runs code, and other people's data. */
export type Role = (typeof ROLES)[number]

/** Whether somebody with this role may do what needs another one. */
export function hasRole(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed)
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The role that the route needs, `user` where absent; `anyone` needs no key. */
    role?: Role | 'anyone'
  }
}
