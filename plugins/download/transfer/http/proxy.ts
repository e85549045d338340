import { isLoopback } from '../../../../core/system/private-address.ts'

/**
 * The proxy for an address: the given one, else what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say (lower case first, as
 * curl reads them); to this machine itself theirs are passed by. Undefined is none.
 * @throws Error when it is not an http or https address
 */
export function proxyFor(target: URL, given: string | undefined, env: NodeJS.ProcessEnv): URL | undefined {
  const value = given ?? fromEnvironment(target, env)
  if (!value) return undefined
  let proxy: URL | undefined
  try {
    proxy = new URL(/^[a-z][a-z0-9+.-]*:\/\//i.test(value) ? value : `http://${value}`)
  } catch {
    // Told below, without the value: it may hold a password.
  }
  if (proxy?.protocol !== 'http:' && proxy?.protocol !== 'https:') {
    throw new Error('the proxy setting is not an address that starts with http:// or https://')
  }
  return proxy
}

function fromEnvironment(target: URL, env: NodeJS.ProcessEnv): string | undefined {
  if (isLoopback(target.hostname) || isExempt(target, env.no_proxy ?? env.NO_PROXY ?? '')) return undefined
  const plain = env.http_proxy || env.HTTP_PROXY
  return target.protocol === 'https:' ? env.https_proxy || env.HTTPS_PROXY || plain : plain
}

function isExempt(target: URL, list: string): boolean {
  const host = target.hostname.replace(/^\[|\]$/g, '').toLowerCase()
  const port = target.port || (target.protocol === 'https:' ? '443' : '80')
  for (const entry of list.toLowerCase().split(/[\s,]+/)) {
    if (entry === '') continue
    if (entry === '*') return true
    const parts = /^\[?(.+?)\]?(?::(\d+))?$/.exec(entry)!
    const bare = entry.split(':').length > 2 && !entry.startsWith('[') ? entry : parts[1]!
    const entryPort = bare === entry ? undefined : parts[2]
    if (entryPort !== undefined && entryPort !== port) continue
    const name = bare.replace(/^\*?\./, '')
    if (host === name || host.endsWith(`.${name}`)) return true
  }
  return false
}

/** The `Proxy-Authorization` that a proxy's address asks for. */
export function proxyAuthorization(proxy: URL): string | undefined {
  if (proxy.username === '') return undefined
  const credentials = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`
  return `Basic ${Buffer.from(credentials).toString('base64')}`
}
