import { CorralError } from '../errors.ts'

/** Roles in ascending order. Each includes the permissions of the previous ones. */
export const ROLES = ['user', 'operator', 'admin'] as const

/** `user` uses models, `operator` also manages them, `admin` may also run code and see other people's data. */
export type Role = (typeof ROLES)[number]

export function hasRole(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed)
}

/** Refuses a caller whose role does not suffice. @throws CorralError `forbidden_role` */
export function requireRole(caller: { role: Role; name?: string }, needed: Role | 'anyone'): void {
  if (needed === 'anyone' || hasRole(caller.role, needed)) return
  const who = caller.name === undefined ? 'callers without a key have' : `the key "${caller.name}" has`
  const message = `This needs the role "${needed}", and ${who} the role "${caller.role}". ${howToGetRole(caller, needed)}`
  throw new CorralError('forbidden_role', message, { details: { role: caller.role, neededRole: needed } })
}

/** A sentence that tells a caller how to get a missing role. */
export function howToGetRole({ name }: { name?: string }, needed: Role): string {
  return needed === 'admin' && name === undefined
    ? "Use the corral command as the user who runs the server (corral open, for a browser), or send an admin's key (corral key create <name> --role admin)."
    : `Ask the admin of this server for a key with the role "${needed}" (corral key create <name> --role ${needed}).`
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The role that the route needs, `user` if absent; `anyone` needs no key. */
    role?: Role | 'anyone'
    /** Whether to log it in the audit log; by default, every method except `GET`. */
    audited?: boolean
  }
}
