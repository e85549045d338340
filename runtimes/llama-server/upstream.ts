import { connect } from 'node:net'
import { createHttpClient, type HttpAnswer, type HttpRequest } from '../../core/system/http-client.ts'
import type { EngineAddress } from './launch.ts'

/** The connection of a stream is not reused (`keep`), because llama-server closes it although it promises otherwise. */
export interface EngineRequest extends HttpRequest {
  signal?: AbortSignal | undefined
}
export type EngineResponse = Pick<HttpAnswer, 'status' | 'body'>

export type Upstream = ReturnType<typeof createUpstream>

export interface UpstreamHooks {
  alive(): boolean
  /** Returns the error to report for a broken connection. */
  explain(error: Error): Promise<Error>
  /** Called before each request is sent. */
  onRequest?(): void
}

/** Routes that save slots to files and restore them. */
const SLOT_FILES = '/slots/'

/** Milliseconds until an idle connection is closed, because llama-server polls each 100 times a second. */
const IDLE_MS = 1000
/** Threads of llama-server that idle connections may not take. The watch needs them (`engine-watch.ts`). */
const THREADS_FOR_OTHERS = 4

/** Whether it is a comment of an event stream, which llama-server sends while it has nothing else to send. */
const isSignOfLife = (chunk: Buffer) => chunk.length <= 3 && chunk[0] === 0x3a

/**
 * Sends requests to an engine, without time limits. An idle connection may be reused, but llama-server has a thread for
 * each connection, even an idle one, and a request without a thread waits for seconds until another connection closes.
 * So an idle one stays open only while all connections, including those of others, have threads.
 * @param threads how many connections it certainly serves in parallel. Without it, none is reused
 */
export function createUpstream({ listen, key }: EngineAddress, hooks: UpstreamHooks, threads = 0) {
  let received = 0
  let filing = 0
  const isFiling = ({ path }: HttpRequest) => path.startsWith(SLOT_FILES)
  const client = createHttpClient(
    {
      connect: onread =>
        connect({
          ...('socketPath' in listen ? { path: listen.socketPath } : listen),
          allowHalfOpen: true,
          onread
        }),
      head: `host: localhost\r\nauthorization: Bearer ${key}\r\n`,
      maxWithIdle: threads - THREADS_FOR_OTHERS,
      idleMs: IDLE_MS
    },
    {
      mayRepeat: hooks.alive,
      explain: hooks.explain,
      began(request) {
        if (isFiling(request)) filing++
        hooks.onRequest?.()
      },
      ended(request) {
        if (isFiling(request)) filing--
      },
      received(chunk) {
        if (!chunk) received++
        else if (!isSignOfLife(chunk)) received += chunk.length
      }
    }
  )
  return {
    request: (request: EngineRequest): Promise<EngineResponse> => client.request(request),
    cut: client.cut,
    /** Open requests, bytes and answers received without keep-alives, and whether slots are being saved or restored. */
    activity: () => ({ open: client.open, received, filing: filing > 0 })
  }
}
