import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { WorkStep } from '../../core/contracts/native-records.ts'
import type { TrialFailure, TrialRecord, TrialSettings } from '../../core/contracts/trials.ts'
import { plural } from '../../core/system/plural.ts'
import type { Activity } from '../../plugins/apis/native/trial-routes.ts'
import { CommandFailure, EXIT } from '../command-failure.ts'
import type { ServerClient } from '../server-client.ts'

export interface BenchServer {
  /**
   * Loads the model anew with these settings, in the place of those of the last call. They hold until `close`, or until
   * this process is gone.
   */
  load(settings: TrialSettings): Promise<TrialRecord | TrialFailure>
  /**
   * Runs the work, again where requests of others came in between; waits first until none is answered.
   * @param sent counts the requests of this command
   */
  alone<Result>(sent: () => number, work: () => Promise<Result>): Promise<Result>
  /** How often work was measured again because others were at work. */
  readonly disturbed: number
  /** Lets the model be as it was before. */
  close(): void
}

/** How often work is measured again at most. */
const MAX_AGAIN = 20
/** How often a busy server is looked at (milliseconds). */
const LOOK = 500

/**
 * @param anyway measures beside the requests of others
 * @param say takes what is being done
 */
export function benchServer(
  client: ServerClient,
  model: string,
  { anyway, say }: { anyway: boolean; say: (text: string) => void }
): BenchServer {
  const session = randomBytes(9).toString('base64url')
  let held: AbortController | undefined
  let disturbed = 0

  const activity = () => client.json<Activity>('GET', '/api/trials/activity')

  async function untilIdle(): Promise<Activity> {
    for (;;) {
      const now = await activity()
      const others = now.running + now.waiting
      if (others === 0 || anyway) return now
      say(`waiting: the server answers ${plural(others, 'other request')} (--anyway does not wait)`)
      await sleep(LOOK)
    }
  }

  return {
    async load(settings) {
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
        if (done) throw new CommandFailure(EXIT.failure, 'The server ended the trial. Its log says more.')
        if (value.status !== 'ready' && value.status !== 'failed') {
          say(value.status)
          continue
        }
        // The stream is read on, as long as it is open: the settings hold for so long.
        isLoading = false
        void events.next().catch(() => undefined)
        before?.abort()
        return value as TrialRecord | TrialFailure
      }
    },
    async alone(sent, work) {
      for (let again = 0; ; again++) {
        const before = await untilIdle()
        const sentBefore = sent()
        const result = await work()
        const after = await activity()
        const others = after.requests - before.requests - (sent() - sentBefore) + after.running + after.waiting
        if (others <= 0 || anyway) return result
        disturbed++
        if (again >= MAX_AGAIN) {
          throw new CommandFailure(
            EXIT.failure,
            'The server answers other requests all the time. Measure when it is idle, or with --anyway.'
          )
        }
      }
    },
    get disturbed() {
      return disturbed
    },
    close: () => held?.abort()
  }
}
