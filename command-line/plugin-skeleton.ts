/** What `corral plugin new` makes. */
export const KINDS = ['engine', 'filter', 'hub', 'surface'] as const
export type PluginKind = (typeof KINDS)[number]

interface Skeleton {
  description: string
  source: string
  test: string
  /** Text of the section `## Try it` of its README. */
  trial: string
}

const QUESTION = '{"model": "corral/tiny-chat", "messages": [{"role": "user", "content": "Hello there"}]}'
const CHAT = `\`\`\`sh
curl http://127.0.0.1:11435/v1/chat/completions -d '${QUESTION}'
\`\`\``

const skeletons: Record<PluginKind, (name: string) => Skeleton> = {
  engine: name => ({
    description: 'An engine of our own',
    source: `import { randomUUID } from 'node:crypto'
import { type AnswerSink, definePlugin, type Engine, type EngineFields, type EngineSpec } from 'corral/plugin'

/** Answers with what it was asked. Put your own generation into \`chat\`. */
function startEngine(spec: EngineSpec): Engine {
  let exit = (_: { code: number; signal: null; expected: boolean }) => {}
  return {
    id: randomUUID(),
    provider: '${name}',
    spec,
    contextSize: spec.options.num_ctx,
    slots: 4,
    memory: undefined,
    exited: new Promise(resolve => {
      exit = resolve
    }),
    async chat({ messages }: EngineFields, sink: AnswerSink) {
      const last = (messages as { content: unknown }[]).at(-1)
      const words = String(last?.content ?? '').split(/(?<=\\s)/)
      for (const content of words) {
        sink.signal.throwIfAborted()
        await sink.take([{ content }])
      }
      const usage = { promptTokens: words.length, cachedTokens: 0, completionTokens: words.length }
      await sink.take([{ finish: 'stop', usage }])
    },
    async stop() {
      exit({ code: 0, signal: null, expected: true })
    },
    logTail: () => []
  }
}

export default definePlugin({
  name: '${name}',
  api: 1,
  description: 'An engine of our own',
  optional: true,
  needs: ['engines'],
  setup(context) {
    context.service('engines').add({
      name: '${name}',
      // The provider with the highest number serves a model; 0 where it cannot. llama.cpp's is low.
      serves: (model, mode) => (mode === 'chat' && model.publicName === 'corral/tiny-chat' ? 1000 : 0),
      start: async spec => startEngine(spec)
    })
    return {}
  }
})
`,
    test: `import assert from 'node:assert/strict'
import test from 'node:test'
import { engineContract, startTestCorral } from 'corral/testing'
import plugin from './index.js'

test('it fulfils the contract of engines', () => engineContract(plugin))

test('it answers on /v1', async () => {
  const corral = await startTestCorral({ plugins: [plugin], echo: false })
  try {
    const { body } = await corral.json('/v1/chat/completions', ${QUESTION})
    assert.equal(body.choices[0].message.content, 'Hello there')
  } finally {
    await corral.close()
  }
})
`,
    trial: CHAT
  }),
  filter: name => ({
    description: 'Sees and changes requests and their answers',
    source: `import { definePlugin } from 'corral/plugin'

export default definePlugin<{ refuse: string[] }>({
  name: '${name}',
  api: 1,
  description: 'Sees and changes requests and their answers',
  optional: true,
  options: {
    type: 'object',
    properties: {
      refuse: { type: 'array', items: { type: 'string' }, default: [], description: 'Words whose requests are refused' }
    },
    additionalProperties: false
  },
  setup(context, { refuse }) {
    return {
      on: {
        request({ body }) {
          const text = JSON.stringify(body.messages ?? body.prompt ?? '')
          const word = refuse.find(one => text.includes(one))
          if (word) throw context.error('invalid_request', \`Requests about "\${word}" are not answered here.\`)
        },
        event(event) {
          if (event.content) event.content = event.content.replaceAll('Hello', 'Good day')
          return undefined
        }
      }
    }
  }
})
`,
    test: `import assert from 'node:assert/strict'
import test from 'node:test'
import { filterContract, startTestCorral } from 'corral/testing'
import plugin from './index.js'

const config = '${name}: { refuse: [weather] }'

test('it fulfils the contract of filters', () => filterContract(plugin, { refused: 'the weather', config }))

test('it changes answers', async () => {
  const corral = await startTestCorral({ plugins: [plugin], config })
  try {
    const { body } = await corral.json('/v1/chat/completions', ${QUESTION})
    assert.equal(body.choices[0].message.content, 'Good day there')
  } finally {
    await corral.close()
  }
})
`,
    trial: CHAT
  }),
  hub: name => ({
    description: 'Models from a place of our own',
    source: `import { createHash } from 'node:crypto'
import { definePlugin, type Hub, type PluginContext } from 'corral/plugin'

/** Models that a web server has as \`<address>/<owner>/<name>/model.gguf\`. Put your own listing into \`repository\`. */
export function createHub(context: Pick<PluginContext, 'error'>, address: string): Hub {
  return {
    name: '${name}',
    title: 'Our own place',
    prefixes: ['${name}:'],
    async repository({ id }, { signal }) {
      const url = \`\${address}/\${id}/model.gguf\`
      const reply = await fetch(url, { method: 'HEAD', ...(signal && { signal }) }).catch(() => undefined)
      if (!reply) throw context.error('hub_unreachable', \`\${address} cannot be reached. Try again later.\`)
      if (!reply.ok) throw context.error('repo_not_found', \`There is no model \${id} at \${address}.\`)
      const size = Number(reply.headers.get('content-length'))
      const revision = createHash('sha256').update(\`\${size} \${reply.headers.get('etag') ?? ''}\`).digest('hex')
      return { hub: '${name}', id, revision, address: url, gated: false, files: [{ path: 'model.gguf', size }] }
    },
    async locate({ id, revision }, { path, size }) {
      const place = { url: \`\${address}/\${id}/\${path}\`, headers: {}, identity: revision }
      return size === undefined ? place : { ...place, size }
    }
  }
}

export default definePlugin<{ address: string }>({
  name: '${name}',
  api: 1,
  description: 'Models from a place of our own (${name}:owner/name)',
  optional: true,
  needs: ['downloads'],
  options: {
    type: 'object',
    properties: { address: { type: 'string', default: 'http://127.0.0.1:8000', description: 'Where the models are' } },
    additionalProperties: false
  },
  setup(context, { address }) {
    context.service('downloads').addHub(createHub(context, address))
    return {}
  }
})
`,
    test: `import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import test from 'node:test'
import { CorralError } from 'corral/plugin'
import { hubContract, startTestCorral } from 'corral/testing'
import plugin, { createHub } from './index.js'

test('it fulfils the contract of hubs', async () => {
  const server = createServer(({ url }, reply) => {
    reply.writeHead(url === '/owner/model/model.gguf' ? 200 : 404, { 'content-length': 4 }).end('GGUF')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    const error = (...values: ConstructorParameters<typeof CorralError>) => new CorralError(...values)
    await hubContract(createHub({ error }, \`http://127.0.0.1:\${port}\`), { id: 'owner/model', absent: 'owner/none' })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

test('a server starts with it', async () => {
  const corral = await startTestCorral({ plugins: [plugin] })
  try {
    assert.equal((await corral.plugin('${name}'))?.state, 'active')
  } finally {
    await corral.close()
  }
})
`,
    trial: `\`\`\`sh
corral pull ${name}:owner/name
\`\`\``
  }),
  surface: name => ({
    description: 'An API of our own',
    source: `import { definePlugin, parseModelName } from 'corral/plugin'

export default definePlugin({
  name: '${name}',
  api: 1,
  description: 'An API of our own, under /${name}',
  optional: true,
  needs: ['storage'],
  setup(context) {
    const storage = context.service('storage')
    return {
      routes: async app => {
        app.post('/${name}/describe', { schema: { summary: 'Describe a model' } }, async request => {
          const { model } = request.body as { model?: unknown }
          const { publicName, size, metadata } = storage.get(parseModelName(model))
          return { model: publicName, size, capabilities: metadata.capabilities }
        })
      }
    }
  }
})
`,
    test: `import test from 'node:test'
import { surfaceContract } from 'corral/testing'
import plugin from './index.js'

test('it fulfils the contract of surfaces', async () => {
  await surfaceContract(plugin, { path: '/${name}/describe', body: { model: 'corral/tiny-chat' } })
})
`,
    trial: `\`\`\`sh
curl http://127.0.0.1:11435/${name}/describe -d '{"model": "corral/tiny-chat"}'
\`\`\``
  })
}

/**
 * The files of a new plugin, by their paths.
 * @param corral folder of the package that it is written against
 */
export function pluginSkeleton(kind: PluginKind, name: string, corral: string): Record<string, string> {
  const { description, source, test, trial } = skeletons[kind](name)
  const json = (value: unknown) => `${JSON.stringify(value, undefined, 2)}\n`
  return {
    'package.json': json({
      name: `corral-plugin-${name}`,
      version: '0.1.0',
      description,
      type: 'module',
      exports: './dist/index.js',
      corral: { api: 1 },
      scripts: { build: 'tsc', test: 'tsc && node --test dist/index.test.js' },
      devDependencies: { '@types/node': '^20.19.43', corral: `file:${corral}`, typescript: '^5.9.0 || ^7.0.0' }
    }),
    'tsconfig.json': json({
      compilerOptions: {
        target: 'es2023',
        module: 'nodenext',
        rootDir: 'src',
        outDir: 'dist',
        strict: true,
        skipLibCheck: true,
        types: ['node']
      },
      include: ['src']
    }),
    'src/index.ts': source,
    'src/index.test.ts': test,
    '.gitignore': 'node_modules/\ndist/\n',
    'README.md': `# ${name}

${description}, for corral.

\`\`\`sh
npm install
npm test
corral plugin check .
\`\`\`

## Try it

List it in the \`config.yaml\` of corral, with the path of this folder, and start the server:

\`\`\`yaml
plugins: [/path/to/${name}]
\`\`\`

${trial}
`
  }
}
