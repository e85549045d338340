import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { freePort } from '../../core/system/free-port.ts'
import { knownName } from '../../plugins/models/download/choice/known-names.ts'
import { corralWithHub } from '../../test/plugins/models/download/support.ts'
import { until } from '../../test/support/corral.ts'
import { startHubEmulator } from '../../test/support/hub-emulator/hub-emulator.ts'
import { chatModel, type ModelNames, makeModels } from './ollama-models.ts'

type Owner = Pick<Test, 'teardown'>

/**
 * Starts a corral with all models named in Ollama's tests. Most are stand-ins. Models whose publisher corral knows are
 * left for the tests to pull from an emulated hub.
 * @returns the address for Ollama's clients
 */
export async function corralWithModels(t: Owner, names: ModelNames): Promise<string> {
  const toRepository = (name: string) => {
    const [bare = '', variant] = name.split(':')
    const model = knownName({ name: bare, ...(variant !== undefined && { variant }) })?.model
    return model && `${model.owner}/${model.name}`
  }
  const chat = await chatModel()
  const repositories: Record<string, { files: Record<string, Buffer> }> = {}
  for (const name of names.chat) {
    const repository = toRepository(name)
    if (repository) repositories[repository] = { files: { [`${repository.split('/')[1]}-F16.gguf`]: chat } }
  }
  const hub = await startHubEmulator(t, { repositories })
  const corral = await corralWithHub(t, hub, { config: 'api-ollama: { listen: "127.0.0.1:0" }' })
  const [, url] = /served at (http:\/\/127\.0\.0\.1:\d+)/.exec(corral.log()) ?? []
  if (url === undefined) throw new Error(`corral has no address for Ollama's clients:\n${corral.log()}`)
  const made = { ...names, chat: names.chat.filter(name => toRepository(name) === undefined) }
  await makeModels({ url, goTemplates: false }, made)
  return url
}

/** Starts Ollama with all models named in its tests. @returns its address */
export async function ollamaWithModels(t: Owner, program: string, names: ModelNames): Promise<string> {
  const home = mkdtempSync(join(tmpdir(), 'corral-ollama-'))
  const url = `http://127.0.0.1:${await freePort()}`
  const env = { ...process.env, HOME: home, OLLAMA_HOST: url, OLLAMA_MODELS: join(home, 'models') }
  const child = spawn(program, ['serve'], { env, cwd: home, stdio: ['ignore', 'ignore', 'pipe'] })
  let log = ''
  child.stderr.setEncoding('utf8').on('data', text => {
    log = (log + text).slice(-20_000)
  })
  const exited = once(child, 'exit')
  t.teardown(async () => {
    child.kill()
    await exited
    rmSync(home, { recursive: true, force: true })
  })
  await until('Ollama to listen', async () => {
    if (child.exitCode !== null) throw new Error(`Ollama ended during its start:\n${log}`)
    return await fetch(url).then(
      ({ ok }) => ok,
      () => false
    )
  })
  await makeModels({ url, goTemplates: true }, names)
  return url
}
