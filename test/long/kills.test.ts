import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { alive, CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { pick, randomNumbers } from '../support/random.ts'
import { answerRequest, record, writeModelCopy } from './support.ts'

const KILLS = Number(process.env.CORRAL_LONG_KILLS ?? 100)
const MODELS = ['kill/one', 'kill/two', 'kill/three']
const SOURCES = 6

/** Process ids of llama-servers that use files below this folder, whoever their parent is. */
function enginesOn(folder: string): number[] {
  return readdirSync('/proc')
    .filter(entry => /^\d+$/.test(entry))
    .map(Number)
    .filter(pid => {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        return command.includes('llama-server') && command.includes(folder) && alive(pid)
      } catch {
        // The process ended in between.
        return false
      }
    })
}

/** Compares every stored file with its manifest, and finds revisions that no manifest names. */
function damage(home: string): { files: number; faults: string[] } {
  const models = join(home, 'models')
  const faults: string[] = []
  let files = 0
  for (const owner of readdirSync(models)) {
    if (owner === '.staging') {
      faults.push(...readdirSync(join(models, owner)).map(name => `${name} remains in the staging folder`))
      continue
    }
    for (const name of readdirSync(join(models, owner))) {
      const folder = join(models, owner, name)
      const manifest = JSON.parse(readFileSync(join(folder, 'manifest.json'), 'utf8'))
      const named = new Set(['manifest.json', ...manifest.variants.map((variant: any) => variant.revision)])
      faults.push(...readdirSync(folder).flatMap(entry => (named.has(entry) ? [] : `${entry} remains in ${folder}`)))
      for (const variant of manifest.variants) {
        for (const file of variant.files) {
          files++
          const bytes = readFileSync(join(folder, variant.revision, file.path))
          if (createHash('sha256').update(bytes).digest('hex') !== file.sha256) {
            faults.push(`${owner}/${name}: ${file.path} differs from its manifest`)
          }
        }
      }
    }
  }
  return { files, faults }
}

t.test(`nothing is lost when the gateway is killed with SIGKILL ${KILLS} times`, async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  t.comment(`CORRAL_LONG_SEED=${seed}`)
  const random = randomNumbers(seed)
  const home = newFolder(t)
  const sources = join(home, 'sources')
  const sockets = join(home, 't')
  mkdirSync(sources)
  mkdirSync(sockets)
  for (let index = 0; index < SOURCES; index++) writeModelCopy(join(sources, `${index}.gguf`), index)
  const start = () => startCorral(t, { home, env: { TMPDIR: sockets } })

  /** Work that a kill may hit. Its outcome does not matter: it ends with the gateway. */
  const works: Record<string, (corral: Corral) => Promise<unknown>> = {
    async answering(corral) {
      const { path, body, headers } = answerRequest(
        pick(random, ['sse', 'ndjson', 'hosted']),
        pick(random, MODELS),
        5000
      )
      const response = await corral.send(path, body, { headers })
      await response.text()
    },
    loading: corral => corral.json('/api/load', { model: pick(random, [...MODELS, DEMO]) }),
    importing: async corral => {
      for (;;) {
        const path = join(sources, `${Math.floor(random() * SOURCES)}.gguf`)
        await corral.json('/api/import', { model: pick(random, MODELS), path })
      }
    },
    deleting: async corral => {
      for (;;) {
        await corral.json('/api/delete', { model: pick(random, MODELS) }, { method: 'DELETE' })
        await sleep(random() * 100)
      }
    }
  }

  let engineKills = 0
  let slowest = 0
  let files = 0
  let answers = 0
  for (let turn = 1; turn <= KILLS; turn++) {
    const corral = await start()
    const found = damage(home)
    files += found.files
    t.same(found.faults, [], `after kill ${turn - 1} all stored files are intact`)
    const listed: { name: string }[] = (await corral.json('/api/tags')).body.models
    const { name } = pick(random, listed)
    const { body } = await corral.json('/api/chat', {
      model: name,
      messages: [CAPITAL_QUESTION],
      options: { temperature: 0 },
      stream: false
    })
    t.equal(body.message?.content, CAPITAL_ANSWER, `${name} answers`)
    answers++

    const running = Object.keys(works).filter(() => random() < 0.7)
    const open = running.map(work => works[work]!(corral))
    for (const work of open) work.catch(() => {})
    await sleep(random() * 1200)
    const engines = enginesOn(home)
    if (engines.length) engineKills++
    const killed = Date.now()
    await corral.end('SIGKILL')
    await until('no llama-server remains', () => enginesOn(home).length === 0, 30_000)
    const lasted = Date.now() - killed
    slowest = Math.max(slowest, lasted)
    t.ok(
      lasted < 2000,
      `kill ${turn} while ${running.join(', ') || 'idle'}: ${engines.length} engines gone after ${lasted} ms`
    )
    await Promise.allSettled(open)
  }

  const corral = await start()
  t.same(damage(home).faults, [])
  for (const { name } of (await corral.json('/api/tags')).body.models) {
    const { body } = await corral.json('/api/chat', {
      model: name,
      messages: [CAPITAL_QUESTION],
      options: { temperature: 0 },
      stream: false
    })
    t.equal(body.message?.content, CAPITAL_ANSWER, `${name} answers in the end`)
  }
  t.equal(await corral.end('SIGTERM'), 0)
  t.same(readdirSync(sockets), [], 'no socket remains')
  record(t, 'Kills of the gateway', {
    'kills with -9': KILLS,
    'of them with llama-servers running': engineKills,
    'slowest end of all llama-servers': `${slowest} ms after the kill`,
    'files compared with their digests': files,
    'answers checked after a restart': answers,
    seed
  })
})
