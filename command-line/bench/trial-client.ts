import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { WorkStep } from '../../core/contracts/native-records.ts'
import type { TrialFailure, TrialRecord, TrialSettings } from '../../core/contracts/trials.ts'
import { plural } from '../../core/system/plural.ts'
import type { Activity } from '../../plugins/apis/native/benchmark-routes.ts'
import { failure } from '../command-failure.ts'
import type { ServerClient } from '../server-client.ts'

export type BenchServer = ReturnType<typeof benchServer>

const MAX_REPEATS = 20
const POLL_INTERVAL_MS = 500

/** @param anyway measures while other requests are running */
export function benchServer(client: ServerClient, model: string, anyway: boolean, say: (text: string) => void) {
  const session = randomBytes(9).toString('base64url')
  let held: AbortController | undefined
  let disturbed = 0

  const activity = () => client.json<Activity>('GET', '/api/trials/activity')

  async function untilIdle(): Promise<Activity> {
    for (;;) {
      const now = await activity()
      const others = now.running + now.waiting
      if (others === 0 || anyway) return now
      const count = plural(others, 'other request')
      say(`waiting until ${count} ${others === 1 ? 'ends' : 'end'} (use --anyway to skip this)`)
      await sleep(POLL_INTERVAL_MS)
    }
  }

  return {
    /** Reloads the model with these settings until the next call, `close`, or the end of this process. */
    async load(settings: TrialSettings): Promise<TrialRecord | TrialFailure> {
      await untilIdle()
      const before = held
      held = new AbortController()
      const { signal } = held
      let isLoading = true
      const events = client.stream<TrialRecord | TrialFailure | WorkStep>(
        '/api/trials',
        { model, session, settings },
        { signal, onStatus: text => isLoading && say(text) }
      )
      for (;;) {
        const { value, done } = await events.next()
        if (done) throw failure('The server ended the trial. See its log for the reason.')
        if (value.status !== 'ready' && value.status !== 'failed') {
          say(value.status)
          continue
        }
        // The settings apply only while this stream is open.
        isLoading = false
        void events.next().catch(() => undefined)
        before?.abort()
        return value as TrialRecord | TrialFailure
      }
    },
    /** Runs the work alone, and repeats it if another request arrived. @param sent the requests of this command so far */
    async alone<Result>(sent: () => number, work: () => Promise<Result>): Promise<Result> {
      for (let again = 0; ; again++) {
        const before = await untilIdle()
        const sentBefore = sent()
        const result = await work()
        const after = await activity()
        const others = after.requests - before.requests - (sent() - sentBefore) + after.running + after.waiting
        if (others <= 0 || anyway) return result
        disturbed++
        if (again >= MAX_REPEATS) {
          throw failure('The server is never idle. Measure again when nobody uses it, or add --anyway.')
        }
      }
    },
    /** Number of measurements repeated because of other requests. */
    disturbed: () => disturbed,
    /** Restores the model's previous settings. */
    close: () => held?.abort()
  }
}
