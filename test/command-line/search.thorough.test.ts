import t from 'tap'
import { formatFound } from '../../command-line/commands/search.ts'
import type { FoundRepository } from '../../core/contracts/native-records.ts'
import { startCorral } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import { corral, newHome } from './command.ts'
import { type Answer, scriptedServer } from './scripted-server.ts'
import { onTerminal } from './terminal.ts'

const found = (more: Partial<FoundRepository>): FoundRepository => ({
  ...{ model: 'acme/Bird-8B-GGUF', hub: 'huggingface', id: 'acme/Bird-8B-GGUF', publisher: 'acme' },
  ...{
    tasks: [],
    gated: false,
    formats: ['gguf'],
    downloads: 12_345,
    license: 'mit',
    updated_at: '2026-01-02T03:04:05.000Z'
  },
  ...{ variant: 'Q4_K_M', size: 5e9, memory: { required: 6e9, available: 9e9, fits: true } },
  ...more
})
const LARGE = found({ model: 'acme/Whale', gated: true, memory: { required: 9e12, available: 9e9, fits: false } })
const {
  variant: _,
  size: __,
  memory: ___,
  ...ODD
} = found({
  model: 'odd/\u001b[2JOne',
  problem: 'The hub has received too many requests\u001b[31m from here. Try again in 30 s.'
})
const NOW = new Date('2026-01-05T03:04:05.000Z')

t.test('search prints a table, or blocks if the table is too wide', async t => {
  t.equal(
    formatFound([found({}), LARGE], 120, NOW),
    [
      '  SIZE    VARIANT    FITS         DOWNLOADS    UPDATED       LICENCE    GET IT WITH',
      '5.0 GB    Q4_K_M     yes                12k    3 days ago    mit        corral pull acme/Bird-8B-GGUF',
      '5.0 GB    Q4_K_M     no, gated          12k    3 days ago    mit        corral pull acme/Whale'
    ].join('\n')
  )
  const narrow = formatFound([found({}), LARGE, ODD], 40, NOW)
  t.equal(
    narrow,
    [
      'corral pull acme/Bird-8B-GGUF',
      '  SIZE 5.0 GB   VARIANT Q4_K_M',
      '  FITS yes   DOWNLOADS 12k',
      '  UPDATED 3 days ago   LICENCE mit',
      'corral pull acme/Whale',
      '  SIZE 5.0 GB   VARIANT Q4_K_M',
      '  FITS no, gated   DOWNLOADS 12k',
      '  UPDATED 3 days ago   LICENCE mit',
      'corral pull odd/[2JOne',
      '  SIZE ?   DOWNLOADS 12k',
      '  UPDATED 3 days ago   LICENCE mit',
      '',
      'odd/[2JOne: The hub has received too',
      'many requests[31m from here. Try again',
      'in 30 s.'
    ].join('\n')
  )
  t.ok(narrow.split('\n').every(line => line.length <= 40))
})

t.test('search works with and without a running server, and at 40 columns', async t => {
  const hub = await startHubEmulator(t, {
    repositories: {
      'acme/Bird-8B-GGUF': { files: { 'Bird-8B-Q8_0.gguf': { size: 9_000_000 } }, downloads: 12_345, license: 'mit' },
      'acme/Bird-Cut-GGUF': { files: { 'Bird-Q4_K_M-00002-of-00002.gguf': { size: 100 } } }
    }
  })
  const alone = newHome(t)
  const env = { HF_ENDPOINT: hub.url, HF_TOKEN: '', HF_HOME: alone, HF_HUB_OFFLINE: '' }
  const plain = await corral(['search', 'bird', '8b'], { home: alone, env })
  t.match(plain, { code: 0, stdout: /^ +SIZE .*\n9\.0 MB +Q8_0 +yes +12k .* mit +corral pull acme\/Bird-8B-GGUF\n$/ })
  const offline = await corral(['search', 'bird'], { home: alone, env: { ...env, HF_HUB_OFFLINE: '1' } })
  t.match(offline, { code: 1, stderr: /HF_HUB_OFFLINE is set to 1/ })

  const { home } = await startCorral(t, { env })
  const both = await corral(['search', 'bird', '--json', '--limit', '2'], { home })
  t.same(JSON.parse(both.stdout).models.length, 2)
  const fitting = await corral(['search', 'bird', '--fits'], { home })
  t.match(fitting.stdout, /Bird-8B/)
  t.notMatch(fitting.stdout, /Bird-Cut/)
  const nothing = await corral(['search', 'unicorn'], { home })
  t.match(nothing, {
    code: 1,
    stdout: '',
    stderr: /No models match "unicorn"\. Try fewer or other words, or more hubs with --hub all/
  })
  const terminal = onTerminal(t, ['search', 'bird'], home, { columns: 40 })
  await terminal.ended()
  const lines = await terminal.lines()
  t.ok(lines.includes('corral pull acme/Bird-8B-GGUF'), lines.join('\n'))
  t.ok(lines.every(line => line.length <= 40))
})

t.test('search reports failed hubs', async t => {
  const reply = {
    models: [found({}), LARGE],
    hubs: ['huggingface', 'modelscope'],
    errors: [{ hub: 'modelscope', code: 'hub_unreachable', error: 'It is \u001b[2Jdown.' }]
  }
  const send: Answer = answer => answer.setHeader('content-type', 'application/json').end(JSON.stringify(reply))
  const server = await scriptedServer(t, {
    'GET /api/search?q=bird&limit=10&hub=all': send,
    'GET /api/search?q=bird&limit=10': send
  })
  const home = newHome(t)
  const { code, stdout, stderr } = await corral(['search', 'bird', '--hub', 'all', ...server.flags], { home })
  t.match({ code, stderr }, { code: 0, stderr: 'warning: modelscope could not be searched: It is [2Jdown.\n' })
  t.match(stdout, /acme\/Whale/)
  t.equal(
    JSON.parse((await corral(['search', 'bird', '--fits', '--json', ...server.flags], { home })).stdout).models.length,
    1
  )
})
