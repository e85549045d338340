/**
 * Suggests what to do with a new model, as the end of a note. Empty if there is nothing to suggest.
 * @param capabilities capabilities from the model's record
 */
export function nextStep(name: string, capabilities: readonly string[]): string {
  if (capabilities.includes('completion')) return `. Try it with: corral run ${name}`
  const request = (path: string, fields: object) => `POST ${path} ${JSON.stringify({ model: name, ...fields })}`
  if (capabilities.includes('embedding')) {
    return `. It creates embeddings: ${request('/v1/embeddings', { input: 'a text' })}`
  }
  if (capabilities.includes('rerank')) {
    return `. It ranks documents: ${request('/v1/rerank', { query: 'a question', documents: ['a text'] })}`
  }
  return ''
}
