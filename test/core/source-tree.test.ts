import { readdirSync, readFileSync } from 'node:fs'
import { basename, dirname, join, normalize } from 'node:path'
import { test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { readCases } from '../support/fixture.ts'

/* Rules of the source tree that no compiler checks. The linter finds circular imports. */

const ROOMS = ['core', 'command-line', 'plugins', 'runtimes', 'scripts', 'testing', 'examples']
/** Names with the same meaning in each folder. */
const CONVENTIONAL = new Set(
  'index routes schemas options operations engine hub listing refusal models answer'.split(' ')
)

const files = ROOMS.flatMap(room =>
  readdirSync(join(packageRoot, room), { recursive: true, encoding: 'utf8' })
    .filter(name => name.endsWith('.ts') && !name.endsWith('.test.ts'))
    .map(name => `${room}/${name}`)
)
const textOf = (file: string) => readFileSync(join(packageRoot, file), 'utf8')

/** The imports of a file from this package, as paths from its root. */
function importsOf(file: string): string[] {
  const names = [...textOf(file).matchAll(/(?:from|import) '(\.[^']+)'|import\('(\.[^']+)'\)/g)]
  return names.map(([, stated, dynamic]) => normalize(join(dirname(file), (stated ?? dynamic)!)))
}

test('file names are unique, so that a name is enough to find a file', async t => {
  t.ok(files.length > 200, 'the source is read')
  const places = new Map<string, string[]>()
  for (const file of files) {
    const name = basename(file, '.ts')
    if (!CONVENTIONAL.has(name)) places.set(name, [...(places.get(name) ?? []), file])
  }
  const actual = [...places.values()].filter(({ length }) => length > 1)
  t.strictSame(actual, [])
})

test('timeouts use abortAfter, which works around a bug in Node.js 20', async t => {
  const wrong = files.filter(
    file => !file.endsWith('/abort-signals.ts') && textOf(file).includes('AbortSignal.timeout(')
  )
  t.strictSame(wrong, [])
})

test('durations use the monotonic clock; only these files compare or write dates', async t => {
  // Scripts are developer tools, and the page has no monotonic clock across its tabs.
  const found = files.filter(
    file => !/^scripts\/|^plugins\/page\/browser\//.test(file) && /Date\.now\b/.test(textOf(file))
  )
  const dated = readCases<string[]>('core-cases.yaml', 'datedFiles')
  t.strictSame(found.map(file => file.replace(/\.ts$/, '')).sort(), dated)
})

test('the core imports no plugin, no runtime and no command', async t => {
  const wrong = files
    .filter(file => file.startsWith('core/'))
    .flatMap(file => importsOf(file).map(imported => `${file} imports ${imported}`))
    .filter(line => !/ imports core\//.test(line))
  t.strictSame(wrong, [])
})

test('a plugin does not import another plugin', async t => {
  const roomOf = (file: string) => /^(plugins\/(page|[^/]+\/[^/]+)|[^/]+\/[^/]+)/.exec(file)![0]
  const wrong = files
    .filter(file => /^(plugins|runtimes)\/[^/]+\//.test(file))
    .flatMap(file => importsOf(file).map(imported => ({ file, imported })))
    .filter(({ file, imported }) => !imported.startsWith('core/') && roomOf(imported) !== roomOf(file))
    // A build of llama.cpp is verified by starting its server.
    .filter(
      ({ file, imported }) => roomOf(file) !== 'runtimes/llama-cpp' || roomOf(imported) !== 'runtimes/llama-server'
    )
    .map(({ file, imported }) => `${file} imports ${imported}`)
  t.strictSame(wrong, [])
})

test('APIs of other programs import only what plugin authors have', async t => {
  const api = /^plugins\/apis\/(lmstudio|llama)\//
  const wrong = files
    .filter(file => api.test(file))
    .flatMap(file => importsOf(file).map(imported => `${file} imports ${imported}`))
    .filter(line => !/ imports (core\/plugins\/public-api\.ts$|plugins\/apis\/(lmstudio|llama)\/)/.test(line))
  t.ok(files.some(file => api.test(file)))
  t.strictSame(wrong, [])
})

test('an example imports only what plugin authors have', async t => {
  const wrong = files.filter(file => file.startsWith('examples/') && importsOf(file).length > 0)
  t.strictSame(wrong, [])
})

test("llama-server's flags and routes are known only in its own folder", async t => {
  const flags =
    'ctx-size parallel n-gpu-layers gpu-layers tensor-split cache-type-k cache-type-v cache-ram flash-attn mmproj lora jinja ' +
    'slot-save-path threads threads-batch batch-size ubatch-size alias api-key list-devices verbosity no-mmap mlock no-ui ' +
    'metrics props slots embedding embeddings reranking pooling chat-template chat-template-file reasoning-format device ' +
    'main-gpu split-mode fit log-jsonl offline'
  const flag = new RegExp(`'--(${flags.replaceAll(' ', '|')})'`)
  const route = /['"`]\/(infill|apply-template|slots|props|completion|lora-adapters|tokenize|detokenize)['"`/?]/
  /** Other things with the same name. */
  const others = [
    // Routes of corral's own.
    { file: 'plugins/apis/openai/routes.ts', line: /'\/(de)?tokenize'/ },
    { file: 'plugins/apis/llama/routes.ts', line: /^\s+(\[('(GET|POST)', )?)?'\/[a-z-]+',/ },
    { file: 'plugins/apis/llama/props-routes.ts', line: /^\s+(\[('(GET|POST)', )?)?'\/[a-z-]+',/ },
    { file: 'plugins/apis/llama/completion-routes.ts', line: /^\s+(\[('(GET|POST)', )?)?'\/[a-z-]+',/ },
    // A flag of llama.cpp's converter.
    { file: 'plugins/models/conversion/convert-model.ts', line: /'--mmproj'/ }
  ]
  const wrong = files
    .filter(file => /^(core|plugins|runtimes)\//.test(file) && !file.startsWith('runtimes/llama-server/'))
    .flatMap(file =>
      textOf(file)
        .split('\n')
        .map(line => ({ file, line }))
    )
    .filter(({ line }) => flag.test(line) || route.test(line))
    .filter(({ file, line }) => !others.some(other => other.file === file && other.line.test(line)))
    .map(({ file, line }) => `${file}: ${line.trim()}`)
  t.strictSame(wrong, [])
  t.ok(
    files.some(file => file.startsWith('runtimes/llama-server/') && flag.test(textOf(file))),
    'flags are recognized'
  )
})
