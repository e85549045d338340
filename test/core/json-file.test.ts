import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Type } from 'typebox'
import { parseJson, readJsonFile, readJsonFileSync, writeJsonFile } from '../../core/system/json-file.ts'
import { readCases } from '../support/fixture.ts'

const Schema = Type.Object({ version: Type.Literal(1), names: Type.Array(Type.String({ minLength: 1 })) })

t.test('writeJsonFile and readJsonFile round-trip and check a file', async t => {
  const path = join(t.testdir(), 'below', 'record.json')
  t.equal(await readJsonFile(path, Schema), undefined, 'there is none')
  t.equal(readJsonFileSync(path, Schema), undefined)
  const found = await readJsonFile(join(import.meta.filename, 'x.json'), Schema)
  t.equal(found, undefined, 'a file where its folder should be')

  const value = { version: 1 as const, names: ['a', 'b'] }
  await writeJsonFile(path, value, { mode: 0o600 })
  t.equal(readFileSync(path, 'utf8'), '{"version":1,"names":["a","b"]}\n')
  if (process.platform !== 'win32') t.equal(statSync(path).mode & 0o777, 0o600)
  t.same(await readJsonFile(path, Schema), { value })
  t.same(readJsonFileSync(path, Schema), { value })
  await writeJsonFile(path, value, { pretty: true })
  t.match(readFileSync(path, 'utf8'), /^\{\n {2}"version": 1,/)

  await t.rejects(readJsonFile(join(path, '..'), Schema), { code: 'EISDIR' })
  writeFileSync(path, '{"version":1,"names":["a"')
  t.match(await readJsonFile(path, Schema), { value: undefined, fault: /^it is not JSON: / })
})

t.test('parseJson refuses JSON that does not match the schema', async t => {
  for (const [text, fault] of readCases<[string, RegExp][]>('core-cases.yaml', 'jsonFaults')) {
    t.match(parseJson(text, Schema), { value: undefined, fault }, text)
  }
  t.same(parseJson('{"version":1,"names":[],"more":1}', Schema).value, { version: 1, names: [], more: 1 })
})
