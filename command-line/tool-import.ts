import { type ParseError, parse, printParseErrorCode } from 'jsonc-parser'
import { isObject } from '../core/system/json-object.ts'

/* Converts the MCP servers in the settings of other programs to those of corral. */

type Values = Record<string, unknown>

export interface ConvertedServers {
  /** Settings by name, for `mcp.servers`. */
  servers: Record<string, Values>
  /** Variables that replace secrets, with the places of these. */
  variables: Map<string, string>
  /** What was not converted. */
  notes: string[]
}

const SECRET_NAME =
  /key|token|secret|passw|auth|credential|cookie|session|private|dsn|\bpat\b|_pat$|database_url|connection/i
/** Beginnings of well-known tokens, passwords in addresses, and long random texts. */
const SECRET_VALUE =
  /^(sk-|gh[pousr]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|hf_|eyJ)|^(bearer|basic|token) |:\/\/[^/\s:@]*:[^/\s@]+@|^(?=.*\d)(?=.*[a-z])[\w+/=-]{32,}$/i
/** What only an editor can fill in. */
const EDITOR_PLACEHOLDER = /\$\{(workspaceFolder\w*|userHome|pathSeparator|file\w*|\/)\}/
/** Headers that are no secrets. */
const PLAIN_HEADERS = ['accept', 'content-type', 'user-agent']

/** Parses JSON with comments, of UTF-8 with or without a byte order mark. @throws Error with the place of a mistake */
export function parseServers(text: string): Values {
  const mistakes: ParseError[] = []
  const body = text.replace(/^\ufeff/, '')
  const value: unknown = parse(body, mistakes, { allowTrailingComma: true })
  const [mistake] = mistakes
  if (mistake) {
    const before = body.slice(0, mistake.offset).split('\n')
    const what = printParseErrorCode(mistake.error)
      .replace(/([a-z])([A-Z])/g, '$1 $2')
      .toLowerCase()
    throw new Error(`line ${before.length}, column ${before.at(-1)!.length + 1} is not valid JSON (${what})`)
  }
  const servers = isObject(value) ? (value.mcpServers ?? value.servers) : undefined
  if (isObject(servers)) return servers
  throw new Error('it has no "mcpServers"')
}

/** @param taken names of servers that exist already */
export function convertServers(given: Values, taken: readonly string[]): ConvertedServers {
  const converted: ConvertedServers = { servers: {}, variables: new Map(), notes: [] }
  const { notes } = converted
  for (const [wanted, fields] of Object.entries(given)) {
    const name = serverName(wanted)
    if (name === undefined) notes.push(`${wanted} is left out: its name has no letters.`)
    else if (taken.includes(name)) notes.push(`${name} exists already and stays as it is.`)
    else if (Object.hasOwn(converted.servers, name))
      notes.push(`${wanted} is left out: another server is named ${name}.`)
    else if (!isObject(fields)) notes.push(`${wanted} is left out: it is not an object.`)
    else convertServer(name, wanted, fields, converted)
  }
  return converted
}

/** Names of servers have no `_`, so that names of tools are unique. */
function serverName(name: string): string | undefined {
  const plain = name
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^[^a-z]+/, '')
    .slice(0, 32)
    .replace(/-$/, '')
  return plain === '' ? undefined : plain
}

function convertServer(name: string, wanted: string, fields: Values, { servers, variables, notes }: ConvertedServers) {
  const { command, args, env, cwd, url, serverUrl, headers, type, transport, disabled, enabled, ...others } = fields
  const address = url ?? serverUrl
  const kind = type ?? transport
  const fault =
    disabled === true || enabled === false
      ? 'it is disabled'
      : kind === 'sse' || (kind === undefined && typeof address === 'string' && /\/sse\/?$/.test(address))
        ? 'corral speaks MCP over HTTP without the older SSE transport. Ask for the address of the newer one'
        : [command, address].filter(each => typeof each === 'string').length !== 1
          ? 'it has neither a command nor a url, or both'
          : placeholderFault([command, args, cwd, address], [env, headers].filter(isObject).flatMap(Object.values))
  if (fault !== undefined) return void notes.push(`${wanted} is left out: ${fault}.`)
  const list = Array.isArray(args) ? args.map(String) : []
  const environment = references(env, name, 'env', variables)
  const sent = references(headers, name, 'headers', variables)
  servers[name] = {
    ...(typeof command === 'string' ? { command } : { url: address }),
    ...(list.length > 0 && { arguments: list }),
    ...(environment && { environment }),
    ...(typeof cwd === 'string' && { directory: cwd }),
    ...(sent && { headers: sent })
  }
  if (name !== wanted) notes.push(`${wanted} is named ${name}.`)
  const secret = list.findIndex(
    (each, at) => SECRET_VALUE.test(each) || SECRET_NAME.test(/^--?([\w-]+)$/.exec(list[at - 1] ?? '')?.[1] ?? '')
  )
  if (secret >= 0) notes.push(`${name}: argument ${secret + 1} may be a secret, and is written as it is.`)
  const approving = Object.keys(others).filter(each => /^(autoApprove|alwaysAllow|trust)$/.test(each))
  if (approving.length > 0)
    notes.push(`${name}: approvals in "${approving.join('", "')}" are not carried over. See "ask" in docs/tools.md.`)
  const rest = Object.keys(others).filter(each => !approving.includes(each))
  if (rest.length > 0) notes.push(`${name}: corral has no setting for "${rest.join('", "')}".`)
}

function placeholderFault(plain: unknown[], filled: unknown[]): string | undefined {
  const [found] = /\$\{[^}]*\}/.exec(plain.flat().join('\n')) ?? EDITOR_PLACEHOLDER.exec(filled.join('\n')) ?? []
  return found && `it uses ${found}, which corral cannot fill in there. Replace it by its value`
}

/** Replaces secrets, and questions of the other program, by references to variables of corral. */
function references(given: unknown, server: string, field: 'env' | 'headers', variables: Map<string, string>) {
  if (!isObject(given) || Object.keys(given).length === 0) return undefined
  const refer = (variable: string, name: string) => {
    variables.set(variable, `${server}.${field}.${name}`)
    return `\${${variable}}`
  }
  const upper = (text: string) => text.toUpperCase().replace(/\W/g, '_')
  const converted = Object.entries(given).map(([name, value]) => {
    const text = `${value}`
    const filled = text
      .replace(/\$\{input:([^}]+)\}/g, (_, id: string) => refer(upper(id), name))
      .replace(/\$\{(?:env:)?(\w+)(?::-[^}]*)?\}/g, (_, variable: string) => refer(variable, name))
    const isSecret =
      SECRET_VALUE.test(text) ||
      (field === 'env' ? SECRET_NAME.test(name) : !PLAIN_HEADERS.includes(name.toLowerCase()))
    if (filled.includes('${') || text === '' || !isSecret) return [name, filled]
    const usual = field === 'env' ? upper(name) : upper(`${server}_${name}`)
    const variable = variables.has(usual) ? upper(`${server}_${name}`) : usual
    const [scheme = ''] = /^(bearer|basic|token) /i.exec(text) ?? []
    return [name, scheme + refer(variable, name)]
  })
  return Object.fromEntries(converted)
}
