import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { hasRole, ROLES } from '../../core/http/roles.ts'
import { definePlugin } from '../../core/plugins/plugin.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { builtInPlugins } from '../../plugins/built-in.ts'
import { renderApiDocument } from '../../scripts/api-document.ts'
import { routeName } from '../../scripts/role-docs.ts'
import { ROUTES_BY_ROLE } from './role-table.ts'

t.test('each role may do what those before it may', async t => {
  for (const [at, role] of ROLES.entries()) {
    for (const [needed, other] of ROLES.entries()) t.equal(hasRole(role, other), at >= needed, `${role} for ${other}`)
  }
})

t.test('every route needs the role that the table says, and the table has no others', async t => {
  const found: { name: string; role: string }[] = []
  const collector = definePlugin({
    name: 'role-collector',
    api: 1,
    description: 'Collects the roles of routes',
    options: Type.Object({}),
    setup: () => ({
      hooks: async app => {
        app.addHook('onRoute', ({ method, url, config }) => {
          found.push({ name: routeName({ methods: [method].flat(), url }), role: config?.role ?? 'user' })
        })
      }
    })
  })
  const { 'roles.md': text } = await renderApiDocument([...builtInPlugins, collector])
  const expected = new Map(
    Object.entries(ROUTES_BY_ROLE).flatMap(([role, routes]) => routes.map(route => [route, role]))
  )
  for (const { name, role } of found) {
    const known = expected.get(name) ?? expected.get(name.replace('HEAD ', 'GET '))
    t.equal(role, known, `${name} needs ${known}`)
  }
  const names = found.map(({ name }) => name)
  t.same(
    [...expected.keys()].filter(name => !names.includes(name)),
    [],
    'all routes of the table exist'
  )
  t.equal(readFileSync(join(packageRoot, 'docs', 'roles.md'), 'utf8'), text, 'run "npm run docs:write"')
})
