import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import { until } from '../../../support/corral.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { fetch } from '../../../support/quick-fetch.ts'

/** Starts llama-server itself, as the reference for comparisons. Returns its address. */
export async function startBare(t: Pick<Test, 'teardown'>, model: string): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as { port: number }
  server.close()
  await once(server, 'close')
  const flags = ['--model', model, '--port', `${port}`, '--threads', '1', '--ctx-size', '4096', '--offline']
  const child = spawn(join(engineBuildFolder(), 'llama-server'), flags, { stdio: 'ignore' })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await once(child, 'exit')
  })
  const url = `http://127.0.0.1:${port}`
  await until('llama-server responds', () =>
    fetch(`${url}/health`).then(
      ({ status }) => status === 200,
      () => false
    )
  )
  return url
}
