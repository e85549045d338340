import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { errorResponses, json, jsonOrStream, nativeErrors } from '../../core/http/response-schemas.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { openApiDocument } from '../../plugins/apis/reference/openapi.ts'
import texts from '../../plugins/apis/reference/texts.json' with { type: 'json' }
import { builtInPlugins } from '../../plugins/built-in.ts'
import { renderApiDocument } from '../../scripts/api-document.ts'
import { ajvFor, listOperations, ReplyChecker } from './api-document.ts'

const toDocument = (...routes: { method?: string; url: string; schema?: object }[]): any =>
  openApiDocument(
    routes.map(({ method = 'GET', url, schema = {} }) => ({ method, url, schema, role: 'user' as const }))
  )

/** Routes that are not documented: files of the page, and redirected routes. */
/** Files of pages, other paths of described routes, and a WebSocket, which OpenAPI cannot describe. */
const HIDDEN = [
  'GET /docs/swagger-ui-bundle.js',
  'GET /docs/swagger-ui.css',
  'GET /ollama/v1/*',
  'GET /page/:file',
  'GET /page/manifest.webmanifest',
  'GET /page/service-worker.js',
  'GET /v1/realtime'
]

t.test('the OpenAPI document is generated from the schemas of routes', async t => {
  t.test('paths have readable parameters and an order that does not depend on registration', async t => {
    const params = Type.Object({ '*': Type.String({ title: 'model', description: 'Its name' }) })
    const routes = [
      { method: 'POST', url: '/b' },
      { url: '/b/:id/x', schema: { params: Type.Object({ id: Type.String({ description: 'Of it' }) }) } },
      { url: '/a/*', schema: { params } },
      { url: '/b' },
      { url: '/c/*' }
    ]
    const { paths } = toDocument(...routes)
    t.same(Object.keys(paths), ['/a/{model}', '/b', '/b/{id}/x', '/c/{path}'])
    t.same(Object.keys(paths['/b']), ['get', 'post'])
    t.same(paths['/a/{model}'].get.parameters, [
      {
        name: 'model',
        in: 'path',
        description: 'Its name',
        required: true,
        schema: { type: 'string' },
        example: 'corral/tiny-chat'
      }
    ])
    t.same(paths['/b/{id}/x'].get.parameters[0].schema, { type: 'string' })
    t.same(JSON.stringify(toDocument(...routes)), JSON.stringify(toDocument(...[...routes].reverse())))
  })

  t.test('queries, headers and bodies are described', async t => {
    const { paths } = toDocument(
      {
        url: '/q',
        schema: {
          querystring: Type.Object({ a: Type.String(), b: Type.Optional(Type.Integer({ description: 'How many' })) }),
          headers: Type.Object({ range: Type.Optional(Type.String()) })
        }
      },
      { method: 'POST', url: '/json', schema: { body: Type.Object({}) } },
      { method: 'POST', url: '/none', schema: { body: Type.Object({}), bodyOptional: true } },
      { method: 'POST', url: '/form', schema: { body: Type.Object({}), consumes: ['multipart/form-data'] } }
    )
    t.same(paths['/q'].get.parameters, [
      { name: 'a', in: 'query', required: true, schema: { type: 'string' } },
      { name: 'b', in: 'query', description: 'How many', schema: { type: 'integer' } },
      { name: 'range', in: 'header', schema: { type: 'string' } }
    ])
    t.match(paths['/json'].post.requestBody, { required: true, content: { 'application/json': {} } })
    t.notOk('required' in paths['/none'].post.requestBody)
    t.same(Object.keys(paths['/form'].post.requestBody.content), ['multipart/form-data'])
  })

  t.test('named schemas are defined once, and numbered if they differ', async t => {
    const Inner = Type.Object({ a: Type.String() }, { title: 'Inner' })
    const { paths, components } = toDocument(
      { url: '/a', schema: { response: { 200: json('x', Inner) } } },
      {
        url: '/b',
        schema: { response: { 200: json('x', Type.Object({ list: Type.Array(Inner) }, { title: 'Outer' })) } }
      },
      { url: '/c', schema: { response: { 200: json('x', Type.Object({}, { title: 'Inner' })) } } },
      { url: '/d', schema: { response: { 200: json('x', Type.String({ title: 'no name' })) } } }
    )
    const getSchema = (path: string) => paths[path].get.responses[200].content['application/json'].schema
    t.same(getSchema('/a'), { $ref: '#/components/schemas/Inner' })
    t.same(getSchema('/c'), { $ref: '#/components/schemas/Inner2' })
    t.same(getSchema('/d'), { type: 'string', title: 'no name' })
    t.same(components.schemas.Outer.properties.list.items, { $ref: '#/components/schemas/Inner' })
    t.same(Object.keys(components.schemas), ['Inner', 'Inner2', 'Outer'])
  })

  t.test('nullable values have a short form, and the documented schema may differ from the checked one', async t => {
    const orNull = (schema: any) => Type.Union([schema, Type.Null()])
    const body = Type.Object({
      text: orNull(Type.String({ description: 'x' })),
      choice: orNull(Type.Enum(['a', 'b'])),
      either: orNull(Type.Union([Type.String(), Type.Number()])),
      named: orNull(Type.Object({}, { title: 'Named' })),
      loose: Type.Object({}, { documented: Type.Object({ a: Type.Integer() }) })
    })
    const { properties } = toDocument({ method: 'POST', url: '/x', schema: { body } }).paths['/x'].post.requestBody
      .content['application/json'].schema
    t.same(properties.text, { type: ['string', 'null'], description: 'x' })
    t.same(properties.choice, { enum: ['a', 'b', null] })
    t.same(properties.either, { anyOf: [{ type: 'string' }, { type: 'number' }, { type: 'null' }] })
    t.same(properties.named, { anyOf: [{ $ref: '#/components/schemas/Named' }, { type: 'null' }] })
    t.same(properties.loose.properties, { a: { type: 'integer' } })
  })

  t.test('shared errors are defined once, and streams describe their events', async t => {
    const response = {
      200: jsonOrStream('x', Type.String(), { event: 'Pieces', item: Type.Object({ done: Type.Boolean() }) }),
      ...errorResponses(nativeErrors, ['model_not_found'])
    }
    const { paths, components } = toDocument(
      { method: 'POST', url: '/a', schema: { response } },
      { method: 'POST', url: '/b', schema: { response } }
    )
    t.same(paths['/a'].post.responses, paths['/b'].post.responses)
    t.same(paths['/a'].post.responses[404], { $ref: '#/components/responses/NativeError.404.model_not_found' })
    t.match(components.responses['NativeError.404.model_not_found'], { description: '`model_not_found`' })
    t.match(paths['/a'].post.responses[200].content['text/event-stream'].schema, {
      properties: { data: { type: 'string', contentSchema: { type: 'object', required: ['done'] } } }
    })
  })
})

t.test('the document of the server is complete and valid', async t => {
  const registered: string[] = []
  const collector = definePlugin({
    name: 'route-collector',
    api: 1,
    description: 'Collects routes',
    options: Type.Object({}),
    setup: () => ({
      hooks: async app => {
        app.addHook('onRoute', ({ method, url }) => {
          for (const one of [method].flat()) registered.push(`${one} ${url}`)
        })
      }
    })
  })
  const { 'openapi.json': text } = await renderApiDocument([...builtInPlugins, collector])
  const document = JSON.parse(text)
  const operations = listOperations(document)

  t.test('the document equals the committed one', async t => {
    const committed = readFileSync(join(packageRoot, 'docs', 'openapi.json'), 'utf8')
    t.equal(committed, text, 'run "npm run docs:write"')
    t.equal((await renderApiDocument())['openapi.json'], text, 'the document is the same each time')
  })

  t.test('the document is OpenAPI 3.1, and all of its schemas are JSON Schema 2020-12', async t => {
    const ajv = ajvFor()
    const meta = JSON.parse(readFileSync(join(packageRoot, 'test', 'fixtures', 'openapi', 'schema-3.1.json'), 'utf8'))
    const check = ajv.compile(meta)
    t.ok(check(document), ajv.errorsText(check.errors))
    t.notOk(check({ ...document, paths: { nowhere: {} } }), 'the check can fail')
    ajv.addSchema(document, 'openapi')
    for (const [name, schema] of Object.entries<any>(document.components.schemas)) {
      t.ok(ajv.validateSchema(schema), `${name}: ${ajv.errorsText(ajv.errors)}`)
      t.doesNotThrow(() => ajv.compile({ $ref: `openapi#/components/schemas/${name}` }), `${name} can be used`)
    }
    const references = [...text.matchAll(/"\$ref": "#\/(\w+)\/(\w+)\/([^"]+)"/g)]
    t.ok(references.length > 100)
    for (const [whole, a, b, name] of references) {
      if (!document[a!]?.[b!]?.[name!]) t.fail(`${whole} points to nothing`)
    }
    const numbered = Object.keys(document.components.schemas).filter(
      name => /\d$/.test(name) && document.components.schemas[name.replace(/\d+$/, '')]
    )
    t.same(numbered, [], 'no two schemas share a name')
  })

  t.test('the document has every text that was written for it', async t => {
    const described = new Map(Object.entries<any>(document.components.schemas))
    for (const each of Object.values<any>(document.paths).flatMap(path => Object.values<any>(path))) {
      described.set(each.operationId, each)
    }
    for (const [name, given] of Object.entries(texts)) {
      for (const [path, text] of Object.entries(typeof given === 'string' ? { '': given } : given)) {
        const steps = path.split('.').filter(Boolean)
        const found = steps.reduce((node, step) => node?.properties?.[step] ?? node?.[step], described.get(name))
        t.equal(found?.description, text, `${name}: ${path}`)
      }
    }
  })

  t.test('the document has every registered route', async t => {
    const described = new Set(operations.map(({ method, path }) => `${method} ${path.replace(/\{[^}]+\}/g, '{}')}`))
    const missing = [...new Set(registered)]
      .filter(route => !route.startsWith('OPTIONS '))
      .filter(route => !HIDDEN.includes(route.replace(/^\w+ (\/ollama\/v1)/, 'GET $1')))
      .filter(route => !HIDDEN.includes(route.replace('HEAD ', 'GET ')))
      .map(route => route.replace(/:\w+|\*/g, '{}'))
      // A GET route also answers HEAD.
      .filter(route => !described.has(route) && !described.has(route.replace('HEAD ', 'GET ')))
    t.same(missing, [])
    t.ok(registered.length > 60)
  })

  t.test('every operation describes its purpose, input, output and errors', async t => {
    t.same(
      operations.map(({ operationId }) => operationId).filter((id, at, all) => all.indexOf(id) !== at),
      [],
      'each has its own id'
    )
    for (const operation of operations) {
      const { method, path, operationId, summary, tags, parameters = [], requestBody, responses } = operation
      const role = operation['x-corral-role']
      const where = `${method} ${path}`
      t.match(operationId, /^[a-z]\w+$/, where)
      t.match(summary, /^\S.*[^.]$/, where)
      t.equal(tags?.length, 1, where)
      const inPath = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
      const described = parameters.filter(({ in: place }) => place === 'path').map(({ name }) => name)
      t.same(described, inPath, where)
      const required = [
        ...(role === 'anyone' ? [] : ['401', '429']),
        '403',
        '500',
        '503',
        ...(requestBody ? ['400'] : [])
      ]
      for (const status of required) t.ok(responses[status], `${where} declares ${status}`)
      if (requestBody?.content['application/json']) t.ok(responses[413], `${where} declares 413`)
      for (const [status, reply] of Object.entries(responses)) {
        const { description, content } = reply.$ref
          ? document.components.responses[reply.$ref.replace('#/components/responses/', '')]
          : reply
        t.ok(description, `${where} ${status} has a description`)
        if (Number(status) >= 400 && method !== 'HEAD') {
          t.ok(content['application/json'].schema, `${where} ${status} has a shape`)
          t.match(JSON.stringify(content), /"enum":\["\w+"/, `${where} ${status} has codes`)
        }
      }
    }
  })

  t.test('a wrong reply is distinguished from a right one', async t => {
    const checker = new ReplyChecker(document)
    const json = (status: number, body: object) => ({ status, type: 'application/json', text: JSON.stringify(body) })
    const failure = { error: 'x', errorCode: 404, code: 'model_not_found', requestId: 'x' }
    t.same(checker.check('showModel', json(404, failure)), [])
    t.match(checker.check('showModel', json(404, { ...failure, code: 'unheard_of' })), [/allowed values/])
    t.match(checker.check('showModel', json(404, { ...failure, requestId: 7 })), [/must be string/])
    t.match(checker.check('showModel', json(418, failure)), [/status 418 is not declared/])
    t.match(checker.check('getHealth', json(200, {})), [/required property 'status'/])
    const stream = { status: 200, type: 'text/event-stream' }
    t.match(checker.check('chat', { ...stream, text: 'data: {"done":false}\n\n' }), [/required property/])
    t.match(checker.check('getHealth', { ...stream, text: '' }), [/not declared/])
    t.match(checker.check('chat', json(404, { error: { message: 'x' } })), [/must be string|required property/])
  })
})
