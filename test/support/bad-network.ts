import { connect, createServer, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { listen } from './listen.ts'

/** What a network does to bytes. Directions are named after the receiver. */
export interface Weather {
  /** Milliseconds by which bytes arrive later. */
  delay?: number
  /** Bytes per second in each direction of a connection. */
  rate?: number
  /** Directions whose bytes vanish while connections stay open. */
  lost?: readonly Direction[]
  /** New connections are reset. */
  isClosed?: boolean
}
type Direction = 'client' | 'server'

/** A connection through the proxy. */
export interface Passage {
  client: Socket
  server: Socket
  /** Bytes that will be dropped on their way to this side. */
  dropped: Record<Direction, number>
  /** A direction whose bytes vanish, on this connection only. */
  lost?: Direction
}

/** A bad network before a port of this machine: a TCP proxy. */
export async function startBadNetwork(t: Pick<Test, 'teardown'>, port: number) {
  let weather: Weather = {}
  const passages = new Set<Passage>()

  function pass(passage: Passage, from: Socket, direction: Direction): void {
    const to = passage[direction]
    let tail: Promise<unknown> | undefined
    let due = 0
    const later = (at: number, act: () => void) => {
      const mine = Promise.resolve(tail)
        .then(() => sleep(Math.max(0, at - Date.now())))
        .then(act)
        .then(() => {
          if (tail === mine) tail = undefined
        })
      tail = mine
    }
    from.on('data', data => {
      const { delay = 0, rate = Number.POSITIVE_INFINITY, lost } = weather
      if (lost?.includes(direction) || passage.lost === direction) return
      const rest = data.subarray(passage.dropped[direction])
      passage.dropped[direction] -= data.length - rest.length
      // A slow line sends a little at a time.
      const size = Math.max(1, Math.min(rest.length, rate / 10))
      for (let at = 0; at < rest.length; at += size) {
        const piece = rest.subarray(at, at + size)
        const write = () => void (to.writable && to.write(piece))
        due = Math.max(due, Date.now() + delay) + (1000 * piece.length) / rate
        if (tail === undefined && due <= Date.now()) write()
        else later(due, write)
      }
    })
    from.on('end', () => later(0, () => to.end()))
    from.on('error', () => to.resetAndDestroy())
    from.on('close', () => later(0, () => to.destroySoon()))
  }

  const proxy = createServer({ allowHalfOpen: true }, client => {
    if (weather.isClosed) return void client.resetAndDestroy()
    const server = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    const passage: Passage = { client, server, dropped: { client: 0, server: 0 } }
    passages.add(passage)
    pass(passage, client, 'server')
    pass(passage, server, 'client')
    client.on('close', () => passages.delete(passage))
  })
  t.teardown(() => {
    for (const { client, server } of passages) for (const socket of [client, server]) socket.destroy()
  })
  return {
    url: `http://127.0.0.1:${await listen(t, proxy)}`,
    set(now: Weather) {
      weather = now
    },
    /** Does something to all open connections. */
    each: (act: (passage: Passage) => void) => [...passages].forEach(act)
  }
}
