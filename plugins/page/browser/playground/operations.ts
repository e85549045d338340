import type { Role } from '../../../../core/http/roles.ts'

interface Parameter {
  name: string
  in: string
  required?: boolean
  description?: string
}

export interface ApiDocument {
  paths: Record<string, Record<string, ApiOperation>>
}
interface ApiOperation {
  operationId?: string
  summary?: string
  description?: string
  tags?: string[]
  parameters?: Parameter[]
  'x-corral-role'?: Role
  requestBody?: { content?: Record<string, { example?: unknown; examples?: Record<string, { value?: unknown }> }> }
}

const METHODS = ['get', 'post', 'put', 'delete']

export type Operation = ReturnType<typeof operationsIn>[number]

/** Lists the routes of an API document that take JSON or no body. Routes with a body have an example of one. */
export function operationsIn({ paths }: ApiDocument) {
  return Object.entries(paths).flatMap(([path, methods]) =>
    METHODS.flatMap(method => {
      const operation = methods[method]
      if (!operation) return []
      const { content } = operation.requestBody ?? {}
      const body = content?.['application/json']
      if (content && !body) return []
      const example = body?.example ?? Object.values(body?.examples ?? {})[0]?.value ?? {}
      return {
        id: operation.operationId ?? `${method} ${path}`,
        method: method.toUpperCase(),
        path,
        tag: operation.tags?.[0] ?? '',
        summary: operation.summary ?? path,
        description: operation.description ?? '',
        role: operation['x-corral-role'] ?? 'user',
        parameters: (operation.parameters ?? []).filter(({ in: place }) => place === 'path' || place === 'query'),
        ...(body && { example: JSON.stringify(example, undefined, 2) })
      }
    })
  )
}

export function pathWith({ path, parameters }: Operation, given: Readonly<Record<string, string>>): string {
  let filled = path
  const query: string[] = []
  for (const { name, in: place } of parameters) {
    const value = given[name] ?? ''
    if (place === 'query') {
      if (value !== '') query.push(`${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
    } else filled = filled.replace(`{${name}}`, value.split('/').map(encodeURIComponent).join('/'))
  }
  return filled + (query.length > 0 ? `?${query.join('&')}` : '')
}

/** A request that is shown as code. */
export interface ShownRequest {
  method: string
  url: string
  body?: string
  hasKey: boolean
}

export function asCurl({ method, url, body, hasKey }: ShownRequest): string {
  const quoted = (text: string) => `'${text.replaceAll("'", String.raw`'\''`)}'`
  return lines(' \\\n', [
    `curl ${quoted(url)}`,
    method !== (body === undefined ? 'GET' : 'POST') && `  -X ${method}`,
    hasKey && '  -H "Authorization: Bearer $CORRAL_API_KEY"',
    body !== undefined && `  -H 'Content-Type: application/json' \\\n  -d ${quoted(body)}`
  ])
}

/** Formats a request in Python, using only the standard library. */
export function asPython({ method, url, body, hasKey }: ShownRequest): string {
  const headers = lines(', ', [
    body !== undefined && '"Content-Type": "application/json"',
    hasKey && '"Authorization": f"Bearer {os.environ[\'CORRAL_API_KEY\']}"'
  ])
  return lines('\n', [
    hasKey && 'import os',
    'import urllib.request\n',
    body !== undefined && `body = r'''${body.replaceAll("'''", String.raw`\u0027\u0027\u0027`)}'''`,
    'request = urllib.request.Request(',
    `    ${JSON.stringify(url)},`,
    `    method=${JSON.stringify(method)},`,
    headers && `    headers={${headers}},`,
    body !== undefined && '    data=body.encode(),',
    ')',
    'with urllib.request.urlopen(request) as response:',
    '    for line in response:',
    '        print(line.decode(), end="")'
  ])
}

/** Formats a request in JavaScript for Node.js and browsers. */
export function asJavaScript({ method, url, body, hasKey }: ShownRequest): string {
  const headers = lines(', ', [
    body !== undefined && "'Content-Type': 'application/json'",
    hasKey && `Authorization: 'Bearer ' + process.env.CORRAL_API_KEY`
  ])
  return lines('\n', [
    `const response = await fetch(${JSON.stringify(url)}, {`,
    `  method: ${JSON.stringify(method)},`,
    headers && `  headers: { ${headers} },`,
    body !== undefined && `  body: JSON.stringify(${body.replaceAll('\n', '\n  ')})`,
    '})',
    'for await (const text of response.body.pipeThrough(new TextDecoderStream())) console.log(text)'
  ])
}

const lines = (separator: string, all: (string | false)[]) => all.filter(Boolean).join(separator)
