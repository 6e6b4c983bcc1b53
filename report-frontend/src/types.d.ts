declare module "*.ttf" {
  const base64: string;
  export default base64;
}
declare module "*.css";
