import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { toolEnvironment } from '../../core/system/tool-environment.ts'
import { MODEL, scriptedPython, startConverting } from '../plugins/models/conversion/support.ts'
import { TINY_SAFETENSORS } from '../support/conversion-python.ts'
import { type Corral, DEMO, until } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'

const KEY = 'corral-test-key-of-sixteen-and-more'
/** Variables in a server's environment that no program it starts should see. */
const SECRETS = readCases<Record<string, string>>('attack-cases.yaml', 'secretVariables')

/** The environments of all processes below a server, by command line (Linux only). */
function environmentsBelow(corral: Corral): Map<string, Record<string, string>> {
  const parents = new Map<number, number>()
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, 'utf8')
      parents.set(Number(entry), Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]))
    } catch {
      // The process ended in between.
    }
  }
  const found = new Map<string, Record<string, string>>()
  for (const pid of parents.keys()) {
    let at = parents.get(pid)
    while (at !== undefined && at > 1 && at !== corral.process.pid) at = parents.get(at)
    if (at !== corral.process.pid) continue
    try {
      const text = (name: string) => readFileSync(`/proc/${pid}/${name}`, 'utf8').split('\0').filter(Boolean)
      const variables = text('environ').map(line => line.split(/=(.*)/s).slice(0, 2))
      found.set(text('cmdline').join(' '), Object.fromEntries(variables))
    } catch {}
  }
  return found
}

t.test("the converter, engines and their helpers inherit none of the server's keys and tokens", async t => {
  const python = scriptedPython(t)
  const corral = await startConverting(t, python.path, { env: { ...SECRETS, CUDA_VISIBLE_DEVICES: '' } })
  const headers = { authorization: `Bearer ${KEY}` }
  const send = (path: string, body: object) => corral.json(path, body, { headers })
  t.match(await corral.json('/api/tags'), { status: 401 }, 'the server itself has them')
  t.match(await send('/api/load', { model: DEMO }), { status: 200 })
  t.match(await send('/api/import', { path: TINY_SAFETENSORS, model: MODEL }), { status: 200 })
  python.hold()
  const converted = send('/api/convert', { model: MODEL, stream: false })
  await until('the converter runs', () => python.runs().length > 0)
  const environments = environmentsBelow(corral)
  python.letGo()
  t.match(await converted, { status: 200 })

  const named = (part: string) => [...environments].filter(([command]) => command.includes(part))
  t.ok(
    named('llama-server').length > 0 && named('convert_hf_to_gguf.py').length > 0,
    [...environments.keys()].join('\n')
  )
  const leaks: string[] = []
  for (const [command, variables] of environments) {
    for (const [name, value] of Object.entries(variables)) {
      // This key is not from the server's environment, because each engine has a generated key.
      if (name === 'LLAMA_API_KEY' && !Object.values(SECRETS).includes(value)) continue
      const isSecret = name in SECRETS || Object.values(SECRETS).some(secret => value.includes(secret))
      if (isSecret || /KEY|TOKEN|SECRET/.test(name)) leaks.push(`${name} in ${command.slice(0, 100)}`)
    }
    t.ok(variables.PATH, 'it has the variables that it needs')
  }
  t.same(leaks, [])
  for (const [, { HOME }] of named('convert_hf_to_gguf.py').filter(([command]) => !command.includes('corral-tool'))) {
    t.match(HOME, corral.home, 'it does not see the home folder, which may contain tokens')
  }
})

t.test('programs inherit only listed variables', async t => {
  const useful = readCases<Record<string, string>>('attack-cases.yaml', 'usefulVariables')
  const packages = {
    https_proxy: 'http://proxy',
    NO_PROXY: 'x',
    SSL_CERT_FILE: '/ca',
    PIP_INDEX_URL: 'https://p/simple'
  }
  const compiling = { CC: 'clang', CXXFLAGS: '-O2', CMAKE_PREFIX_PATH: '/opt', CUDACXX: '/nvcc', MAKEFLAGS: '-j2' }
  const { PIP_INDEX_URL, HTTPS_PROXY, ...never } = SECRETS
  const ambient = { ...never, ...useful, ...packages, ...compiling, CMAKE_API_TOKEN: 'x', npm_config__authToken: 'x' }
  t.strictSame(toolEnvironment(ambient), { ...useful })
  t.strictSame(toolEnvironment(ambient, 'packages'), { ...useful, ...packages })
  t.strictSame(toolEnvironment(ambient, 'compiling'), { ...useful, ...compiling })
})
