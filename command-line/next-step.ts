/**
 * What to do with a model that has just come, as the end of a note; empty if there is nothing. Pure.
 * @param capabilities as the model's record has them
 */
export function nextStep(name: string, capabilities: readonly string[]): string {
  if (capabilities.includes('completion')) return `. Try it with: corral run ${name}`
  const request = (path: string, fields: object) => `POST ${path} ${JSON.stringify({ model: name, ...fields })}`
  if (capabilities.includes('embedding')) {
    return `. It makes embeddings: ${request('/v1/embeddings', { input: 'a text' })}`
  }
  if (capabilities.includes('rerank')) {
    return `. It ranks documents: ${request('/v1/rerank', { query: 'a question', documents: ['a text'] })}`
  }
  return ''
}
