import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { randomEncoder } from '../../scripts/random-models.ts'
import { startCorral, until } from '../support/corral.ts'
import { makeEndless, removeEndless } from './leaving.ts'
import { type Client, FEATURES, type Feature, type Outcome, type Place } from './trials.ts'

const KEY = 'a-key-for-tests'
const RANKER = 'random/ranker'

/** A server elsewhere for the clients, instead of one started by the test. */
export const elsewhere = process.env.CORRAL_TEST_ADDRESS

/**
 * Starts the servers for the clients: one with the demo model and no settings except the listener of the Ollama API,
 * and one that requires a key and has no room for models. With CORRAL_TEST_ADDRESS, only trials without special
 * settings run, on that server.
 */
export async function openPlace(t: Test): Promise<Place> {
  const place = elsewhere ? { address: elsewhere.replace(/\/$/, '') } : await startBoth(t)
  const leavingLimit = await makeEndless(place.address)
  if (elsewhere) t.teardown(() => removeEndless(place.address))
  return { ...place, leavingLimit }
}

async function startBoth(t: Test): Promise<Omit<Place, 'leavingLimit'>> {
  const [open, strict] = await Promise.all([
    startCorral(t, { config: 'api-ollama:\n  listen: 127.0.0.1:0\n' }),
    startCorral(t, { config: `security:\n  api_keys: [${KEY}]\nscheduler:\n  memory: 1MiB\n` })
  ])
  const listener = await until(
    "Ollama's clients have their own address",
    () => /clients are also served at (http:\/\/[\d.]+:\d+)/.exec(open.log())?.[1]
  )
  const file = join(open.home, 'ranker.gguf')
  writeFileSync(file, randomEncoder('reranker'))
  const { status, body } = await open.json('/api/import', { path: file, name: RANKER, stream: false })
  if (status !== 200) throw new Error(`${RANKER} cannot be imported: ${JSON.stringify(body)}`)
  return { address: open.url, strict: { address: strict.url, key: KEY }, listener, ranker: RANKER }
}

/** Runs the trials of one client, one after the other. */
export async function runClient(place: Place, { packages, trials }: Client): Promise<Outcome[]> {
  const client = packages.join(', ')
  const version = packages.map(installedVersion).join(', ')
  const outcomes: Outcome[] = []
  for (const feature of Object.keys(FEATURES) as Feature[]) {
    const trial = trials[feature]
    if (!trial || !canBeTried(feature, place)) continue
    const outcome = { client, version, language: 'JavaScript' as const, feature }
    try {
      outcomes.push({ ...outcome, result: 'works', note: (await trial(place)) ?? '' })
    } catch (error) {
      outcomes.push({ ...outcome, result: 'fails', note: error instanceof Error ? error.stack! : String(error) })
    }
  }
  return outcomes
}

function canBeTried(feature: Feature, place: Place): boolean {
  if (feature === 'listener') return place.listener !== undefined
  if (feature === 'rerank') return place.ranker !== undefined
  return place.strict !== undefined || (feature !== 'wrong_key' && feature !== 'no_retries')
}

function installedVersion(name: string): string {
  const { version } = JSON.parse(readFileSync(join(packageRoot, 'node_modules', name, 'package.json'), 'utf8'))
  return version
}

/** Asserts each outcome. */
export function judge(t: Test, outcomes: Outcome[]): void {
  for (const { client, feature, result, note } of outcomes) {
    t.equal(result, 'works', `${client}: ${FEATURES[feature]}`, { note })
  }
}
