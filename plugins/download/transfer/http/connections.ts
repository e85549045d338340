import { validateHeaderName, validateHeaderValue } from 'node:http'
import { Connection, type Exchange } from './connection.ts'
import { proxyAuthorization, proxyFor } from './proxy.ts'

/** Milliseconds that an unused connection is kept; shorter than servers keep theirs. */
const IDLE = 4000

export interface PlaceToAsk {
  url: URL
  headers: Record<string, string>
  proxy: string | undefined
}

export type AskOptions = Omit<Exchange, 'path' | 'headers'>

/** Connections that are kept for the next exchange with the same server. */
export class Connections {
  readonly #idle = new Map<string, { connection: Connection; timer: NodeJS.Timeout }[]>()

  /**
   * Sends one GET over a kept connection or a new one.
   * @throws ConnectionFailure, the signal's reason
   */
  async get(place: PlaceToAsk, options: AskOptions): Promise<'whole' | 'stopped'> {
    const proxy = proxyFor(place.url, place.proxy, process.env)
    const throughProxy = proxy !== undefined && place.url.protocol === 'http:'
    const key = `${proxy?.href ?? ''} ${throughProxy ? '' : place.url.origin}`
    const exchange: Exchange = {
      ...options,
      path: throughProxy ? withoutCredentials(place.url) : `${place.url.pathname}${place.url.search}`,
      headers: headersFor(place, throughProxy ? proxyAuthorization(proxy) : undefined)
    }
    for (;;) {
      const connection =
        this.#take(key) ?? (await Connection.open(place.url, proxy, options.stallTimeout, options.signal))
      const used = connection.exchanges > 0
      try {
        const end = await connection.exchange(exchange)
        if (!connection.closed) this.#keep(key, connection)
        return end
      } catch (error) {
        // A server may close an idle connection just when it is used again; that says nothing about the place.
        if (!used || connection.answered || options.signal.aborted) throw error
      }
    }
  }

  close(): void {
    for (const all of this.#idle.values()) {
      for (const { connection, timer } of all) {
        clearTimeout(timer)
        connection.close()
      }
    }
    this.#idle.clear()
  }

  #take(key: string): Connection | undefined {
    for (let kept = this.#idle.get(key)?.pop(); kept; kept = this.#idle.get(key)?.pop()) {
      clearTimeout(kept.timer)
      if (!kept.connection.closed) return kept.connection
    }
    return undefined
  }

  #keep(key: string, connection: Connection): void {
    const kept = { connection, timer: setTimeout(() => this.#drop(key, connection), IDLE).unref() }
    this.#idle.set(key, [...(this.#idle.get(key) ?? []), kept])
  }

  #drop(key: string, connection: Connection): void {
    connection.close()
    const others = (this.#idle.get(key) ?? []).filter(kept => kept.connection !== connection)
    if (others.length > 0) this.#idle.set(key, others)
    else this.#idle.delete(key)
  }
}

function withoutCredentials(url: URL): string {
  return `${url.origin}${url.pathname}${url.search}`
}

function headersFor({ url, headers }: PlaceToAsk, proxyCredentials: string | undefined): Record<string, string> {
  const all: Record<string, string> = { Host: url.host, 'User-Agent': 'corral', Accept: '*/*' }
  if (url.username !== '') {
    const credentials = `${decodeURIComponent(url.username)}:${decodeURIComponent(url.password)}`
    all.Authorization = `Basic ${Buffer.from(credentials).toString('base64')}`
  }
  if (proxyCredentials !== undefined) all['Proxy-Authorization'] = proxyCredentials
  for (const [name, value] of Object.entries(headers)) {
    validateHeaderName(name)
    validateHeaderValue(name, value)
    const known = Object.keys(all).find(other => other.toLowerCase() === name.toLowerCase())
    all[known ?? name] = value
  }
  return all
}
