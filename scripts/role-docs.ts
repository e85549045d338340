import { ROLES } from '../core/http/roles.ts'

/** A route in the table of roles. */
export interface RoleRow {
  methods: readonly string[]
  url: string
  role: (typeof ROLES)[number] | 'anyone'
  summary: string | undefined
}

const INTRODUCTION = `# Who may call what

Each route requires a role, and each key has a role. A role includes all roles before it:

- **anyone**: no key is required, and the reply contains no private data.
- **user**: use and list models.
- **operator**: also manage models: pull, delete, load, stop, create, import, and copy their files.
- **admin**: also manage anything that can run code on the server (llama.cpp builds) and read private data (logs).

If the server has no keys, all clients are operators. \`corral\` commands use the private socket in the data directory, which
makes the user who runs the server an admin. An insufficient role is rejected with 403 \`forbidden_role\`, and a missing or
wrong key with 401 \`unauthorized\`. Routes of third-party plugins require \`user\` by default, and so do unknown addresses.
\`HEAD\` requires the same role as \`GET\`.

A user's request loads its model, but \`keep_alive\` is ignored. A request that only unloads a model (\`keep_alive\` 0 without a
prompt) requires an operator.

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
