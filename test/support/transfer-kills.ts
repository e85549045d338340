import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Test } from 'tap'
import { sampleBytes, sha256, startByteServer } from './byte-server.ts'

const MiB = 1024 * 1024
/** Size of the file in bytes, and bytes per second of each connection. */
const SIZE = 24 * MiB
const RATE = 2 * MiB
const CONNECTIONS = 4

/** Waits until the downloading process reports success or has exited. */
async function outcome(child: ChildProcess): Promise<{ sha256: string } | undefined> {
  let done: { sha256: string } | undefined
  child.on('message', message => {
    done = message as { sha256: string }
  })
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  return done
}

/**
 * Fetches files in a process that is killed at random moments, until it has been killed this many times. Each file must
 * be correct in the end, and a kill must not cost more than 8 MiB or a second of transfer. Returns the number of files
 * and the bytes that were sent twice.
 */
export async function killTransfers(t: Test, kills: number): Promise<{ files: number; twice: number }> {
  const bytes = sampleBytes(SIZE)
  const server = await startByteServer({ '/file': bytes }, () => ({ rate: RATE }))
  const program = fileURLToPath(new URL('./transfer-child.js', import.meta.url))
  t.teardown(() => server.close())
  let killed = 0
  let round = 0
  let twice = 0
  while (killed < kills) {
    round += 1
    const target = join(t.testdirName, `file-${round}`)
    let killsOfFile = 0
    const sentBefore = server.state.sent
    for (;;) {
      const child = fork(program, [server.url, target, String(SIZE), sha256(bytes), String(CONNECTIONS)], {
        stdio: ['ignore', 'inherit', 'inherit', 'ipc']
      })
      const end = outcome(child)
      const sentAtStart = server.state.sent
      // Killed after its start, at any moment until about its end.
      const moment = Math.random() * 1.1 * SIZE
      while (killed < kills && child.exitCode === null && server.state.sent - sentAtStart < moment) {
        await new Promise(resolve => setTimeout(resolve, 5))
      }
      if (killed < kills && child.exitCode === null) {
        child.kill('SIGKILL')
        killed += 1
        killsOfFile += 1
      }
      const done = await end
      if (done) {
        t.equal(done.sha256, sha256(bytes))
        break
      }
      t.equal(child.signalCode, 'SIGKILL', 'it ended for no other reason')
    }
    t.ok(readFileSync(target).equals(bytes), `file ${round} is right after ${killsOfFile} kills`)
    const again = server.state.sent - sentBefore - SIZE
    twice += again
    // Bytes on their way to a killed process or a replaced connection also count as sent.
    const allowed = killsOfFile * (Math.max(8 * MiB, RATE * CONNECTIONS) + 2 * MiB) + MiB
    t.ok(again <= allowed, `${again} bytes were fetched twice, ${allowed} may be after ${killsOfFile} kills`)
    rmSync(target)
  }
  return { files: round, twice }
}
