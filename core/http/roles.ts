import { CorralError } from '../errors.ts'

/** Roles, the least first: each may do what those before it may. */
export const ROLES = ['user', 'operator', 'admin'] as const

/** `user` asks models, `operator` also manages them, `admin` also what runs code, and other people's data. */
export type Role = (typeof ROLES)[number]

/** Whether somebody with this role may do what needs another one. */
export function hasRole(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed)
}

/**
 * Refuses a caller whose role does not suffice.
 * @throws CorralError `forbidden_role`
 */
export function requireRole(caller: { role: Role; name?: string }, needed: Role | 'anyone'): void {
  if (needed === 'anyone' || hasRole(caller.role, needed)) return
  const who = caller.name === undefined ? 'callers without a key have' : `the key "${caller.name}" has`
  throw new CorralError(
    'forbidden_role',
    `This needs the role "${needed}", and ${who} the role "${caller.role}". ${howToGetRole(caller, needed)}`,
    {
      details: { role: caller.role, neededRole: needed }
    }
  )
}

/** A sentence that tells a caller how to get a role that it has not. */
export function howToGetRole({ name }: { name?: string }, needed: Role): string {
  return needed === 'admin' && name === undefined
    ? "Use the corral command as the user who runs the server (corral open, for a browser), or send an admin's key (corral key create <name> --role admin)."
    : `Ask the admin of this server for a key with the role "${needed}" (corral key create <name> --role ${needed}).`
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The role that the route needs, `user` where absent; `anyone` needs no key. */
    role?: Role | 'anyone'
    /** Whether it changes something or shows what was said; by default whatever is no `GET`. */
    audited?: boolean
  }
}
