import { ROLES } from '../core/http/roles.ts'

/** A route in the table of roles. */
export interface RoleRow {
  methods: readonly string[]
  url: string
  role: (typeof ROLES)[number] | 'anyone'
  summary: string | undefined
}

const INTRODUCTION = `# Who may call what

Each route needs a role; a key has one, and each may do what those before it may:

- **anyone**: no key is needed, and nothing that belongs to anybody is in the reply.
- **user**: asks models, and sees which there are.
- **operator**: also manages them: pulls, deletes, loads, stops, creates, imports, copies their files.
- **admin**: also what can run code on the server (llama.cpp builds), and what belongs to others (logs).

Without any key, callers are operators. The private socket in the data directory, which \`corral\`'s commands use by
themselves, makes an admin of the user who runs the server. A role that does not suffice is refused with 403
\`forbidden_role\`, a missing or wrong key with 401 \`unauthorized\`. Routes of plugins from elsewhere need \`user\` where they
say nothing else, and so do addresses where there is nothing. \`HEAD\` needs what \`GET\` needs.

A request of a user loads the model that it asks, but its \`keep_alive\` does not count, and one that only unloads a model
(\`keep_alive\` 0 without a prompt) needs an operator.

| route | role | what it is for |
|---|---|---|
`

export function renderRoleDocs(routes: readonly RoleRow[]): { 'roles.md': string } {
  const order = ['anyone', ...ROLES]
  const rank = ({ role }: RoleRow) => order.indexOf(role)
  const sorted = routes.toSorted((a, b) => rank(a) - rank(b) || (routeName(a) < routeName(b) ? -1 : 1))
  const rows = sorted.map(row => `| \`${routeName(row)}\` | ${row.role} | ${row.summary ?? ''} |`)
  return { 'roles.md': `${INTRODUCTION}${rows.join('\n')}\n` }
}

/** Formats a route such as `GET /api/tags`. `ANY` means all methods. */
export function routeName({ methods, url }: Pick<RoleRow, 'methods' | 'url'>): string {
  const shown = methods.filter(method => method !== 'HEAD' || methods.length === 1)
  return `${shown.length > 2 ? 'ANY' : shown.join(', ')} ${url}`
}
